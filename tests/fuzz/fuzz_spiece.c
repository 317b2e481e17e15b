#include "fuzz.h"

#include "data/tokenizer.h"

#include <stdlib.h>

/* What is accepted must also tokenize: that is where the library trusts the file. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "The quick  brown ABCa <a><ab> caf\xC3\xA9 \xEF\xAC\x81ne "
                               "\xE2\x85\xAB\n<extra_id_0></s> 12 \xF0\x9F\x99\x82 A\xCC\x81";
    struct sw_tokenizer *tokenizer;
    struct sw_err err = {0};
    struct sw_ids ids = {0};
    struct sw_text out = {0};
    if (sw_tokenizer_open_memory(data, (int64_t)size, "input", -1, 0, &tokenizer, &err) != SW_OK)
        return 0;
    if (sw_tokenizer_encode(tokenizer, text, sizeof text, 0, &ids, NULL, NULL) == SW_OK &&
        sw_tokenizer_decode(tokenizer, ids.ids, ids.count, &out, NULL) != SW_OK)
        abort();
    free(ids.ids);
    free(out.bytes);
    sw_tokenizer_close(tokenizer);
    return 0;
}
