/* Configurations: YAML in, and what was taken out again as YAML, which must read back the same. */
#include "config/config.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sw_config config, again;
    struct sw_err err;
    struct sw_text text = {0}, second = {0};
    sw_err_init(&err);
    if (sw_config_init(&config, NULL) != SW_OK || sw_config_init(&again, NULL) != SW_OK)
        abort();
    if (sw_config_parse(&config, (const char *)data, (int64_t)size, "input", &err) == SW_OK) {
        sw_config_dump(&config, &text);
        if (sw_config_parse(&again, text.bytes, text.used_bytes, "dump", &err) != SW_OK)
            abort();
        sw_config_dump(&again, &second);
        if (strcmp(text.bytes, second.bytes) != 0)
            abort();
        if (sw_config_check(&config, &err) != SW_OK && err.text[0] == '\0')
            abort();
    } else if (err.text[0] == '\0') {
        abort();
    }
    free(text.bytes);
    free(second.bytes);
    sw_config_deinit(&config);
    sw_config_deinit(&again);
    return 0;
}
