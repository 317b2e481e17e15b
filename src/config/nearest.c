/* What somebody may have meant by a key that there is not. */
#include "config/table.h"

#include <stdio.h>
#include <string.h>

/* Names that other trainers have for it. */
static const struct {
    const char *name, *key;
} elsewhere[] = {
    {"batch_size", "train.global_batch"},
    {"bf16", "precision.compute"},
    {"gradient_accumulation_steps", "train.micro_batch"},
    {"gradient_checkpointing", "train.recompute"},
    {"learning_rate", "optimizer.lr"},
    {"per_device_train_batch_size", "train.micro_batch"},
};

static const char *last_part(const char *key)
{
    const char *dot = strrchr(key, '.');
    return dot != NULL ? dot + 1 : key;
}

/* Is `part` one or several whole words of `name`, as warmup of warmup_steps? */
static bool has_words(const char *name, const char *part)
{
    size_t bytes = strlen(part);
    for (const char *at = name; bytes > 0 && (at = strstr(at, part)) != NULL; at++)
        if ((at == name || at[-1] == '_') && (at[bytes] == '\0' || at[bytes] == '_'))
            return true;
    return false;
}

/* Have both a word that says something, as batch of batch_rows and global_batch? */
static bool shares_word(const char *a, const char *b)
{
    enum { LEAST = 4 };
    for (const char *at = a; *at != '\0'; at += at[0] == '_') {
        char word[32];
        size_t bytes = strcspn(at, "_");
        snprintf(word, sizeof word, "%.*s", (int)bytes, at);
        if (bytes >= LEAST && bytes < sizeof word && has_words(b, word))
            return true;
        at += bytes;
    }
    return false;
}

/* How far a mistyped key is from a valid one: as a whole, or by its last part alone when that is
 * closer (the right name, or a part of it, in the wrong section). */
static int key_distance(const char *key, const char *valid)
{
    enum { PART_OF_NAME = 2, WORD_OF_NAME = 3 };
    const char *name = last_part(key), *valid_name = last_part(valid);
    int best = sw_text_distance(key, valid), part = sw_text_distance(name, valid_name);
    if (2 * part <= (int)strlen(name) && part + 1 < best) /* else they are not alike at all */
        best = part + 1;
    if (best > PART_OF_NAME && (has_words(valid_name, name) || has_words(name, valid_name)))
        best = PART_OF_NAME;
    if (best > WORD_OF_NAME && shares_word(name, valid_name))
        best = WORD_OF_NAME;
    return best;
}

static bool same_section(const char *key, const char *valid)
{
    size_t bytes = strcspn(valid, ".") + 1;
    return strncmp(key, valid, bytes) == 0;
}

static int section_distance(const char *name, int index)
{
    char section[64];
    const char *key = sw_options[index].key;
    snprintf(section, sizeof section, "%.*s", (int)strcspn(key, "."), key);
    return sw_text_distance(name, section);
}

static int nearest_section(const char *name)
{
    int best = 0;
    for (int i = 1; i < sw_option_count; i++)
        if (section_distance(name, i) < section_distance(name, best))
            best = i;
    return best;
}

/* Of keys that are equally far, one of the same section. */
static int nearest_key(const char *key, int *distance)
{
    int best = 0, least = 0;
    *distance = 0;
    for (int i = 0; i < sw_option_count; i++) {
        int away = key_distance(key, sw_options[i].key);
        int rank = 2 * away - (same_section(key, sw_options[i].key) ? 1 : 0);
        if (i > 0 && rank >= least)
            continue;
        best = i;
        least = rank;
        *distance = away;
    }
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (strcmp(elsewhere[i].name, last_part(key)) == 0) {
            best = sw_config_find(elsewhere[i].key);
            *distance = 0;
        }
    return best;
}

sw_code sw_option_unknown(const char *key, const char *where, struct sw_err *err)
{
    int distance, best = nearest_key(key, &distance), section = nearest_section(key);
    bool alike = 2 * distance <= (int)strlen(key);
    if (strchr(key, '.') == NULL && section_distance(key, section) < distance &&
        2 * section_distance(key, section) <= (int)strlen(key))
        return SW_FAIL(err, SW_E_USAGE, "%s: there is no section %s; the nearest is %.*s", where,
                       key, (int)strcspn(sw_options[section].key, "."), sw_options[section].key);
    return SW_FAIL(err, SW_E_USAGE,
                   "%s: there is no key %s%s; the nearest is %s (spillway help config lists all)",
                   where, key, alike ? "" : ", and none like it", sw_options[best].key);
}
