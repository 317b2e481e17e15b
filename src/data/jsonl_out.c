#include "data/jsonl_out.h"

#include "data/utf8.h"

void sw_jsonl_add_ids(struct sw_text *text, const int32_t *ids, int64_t count)
{
    sw_text_add_bytes(text, "[", 1);
    for (int64_t i = 0; i < count; i++)
        sw_text_add(text, i > 0 ? ", %d" : "%d", (int)ids[i]);
    sw_text_add_bytes(text, "]", 1);
}

void sw_jsonl_add_string(struct sw_text *text, const char *bytes, int64_t count)
{
    int64_t at = 0, plain = 0; /* [plain, at) goes out as it is */
    sw_text_add_bytes(text, "\"", 1);
    while (at < count) {
        unsigned char byte = (unsigned char)bytes[at];
        int length = sw_utf8_character(bytes + at, count - at);
        if (length > 0 && byte >= 0x20 && byte != '"' && byte != '\\' && byte != 0x7F) {
            at += length;
            continue;
        }
        sw_text_add_bytes(text, bytes + plain, at - plain);
        if (length == 0)
            sw_text_add_bytes(text, "\xEF\xBF\xBD", 3);
        else if (byte == '"' || byte == '\\')
            sw_text_add(text, "\\%c", byte);
        else if (byte == '\n')
            sw_text_add_bytes(text, "\\n", 2);
        else if (byte == '\t')
            sw_text_add_bytes(text, "\\t", 2);
        else
            sw_text_add(text, "\\u%04x", (unsigned)byte);
        plain = ++at;
    }
    sw_text_add_bytes(text, bytes + plain, at - plain);
    sw_text_add_bytes(text, "\"", 1);
}
