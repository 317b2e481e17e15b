#include "train/space.h"

#include "base/text.h"

#include <stdlib.h>

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

int64_t sw_space_needed(const struct sw_space *space)
{
    if (space->saves == 0)
        return most(space->final_bytes, space->stops ? space->checkpoint_bytes : 0);
    int64_t all = space->existing + space->saves;
    int64_t while_saving = 1, at_the_end = 1;
    if (space->keep > 0) {
        while_saving = most(1, least(all, space->keep + 1) - space->existing);
        at_the_end = least(all, space->keep) - space->existing;
    }
    return most(while_saving * space->checkpoint_bytes,
                at_the_end * space->checkpoint_bytes + space->final_bytes);
}

sw_code sw_space_check(const struct sw_space *space, const char *directory, int64_t free_bytes,
                       struct sw_err *err)
{
    int64_t needed = sw_space_needed(space);
    if (free_bytes < 0 || needed <= free_bytes)
        return SW_OK;
    struct sw_space one = *space, half = *space;
    struct sw_text text = {0};
    one.keep = 1;
    half.final_bytes /= 2;
    sw_text_add(&text, "does not fit: output.dir %s needs up to ", directory);
    sw_text_add_size(&text, needed);
    sw_text_add(&text, " (a checkpoint is ");
    sw_text_add_size(&text, space->checkpoint_bytes);
    sw_text_add(&text, ", the final model ");
    sw_text_add_size(&text, space->final_bytes);
    sw_text_add(&text, "), its file system has ");
    sw_text_add_size(&text, free_bytes);
    sw_text_add(&text, " free; ");
    if (sw_space_needed(&one) <= free_bytes)
        sw_text_add(&text, "output.keep_last: 1 would do, or ");
    else if (space->final_is_fp32 && sw_space_needed(&half) <= free_bytes)
        sw_text_add(&text, "output.dtype: bf16 would do, or ");
    sw_text_add(&text, "choose an output.dir with more room");
    sw_code code = sw_text_check(&text, "a message", err);
    if (code == SW_OK)
        code = SW_FAIL(err, SW_E_FIT, "%s", text.bytes);
    free(text.bytes);
    return code;
}
