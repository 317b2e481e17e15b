#include "topo/machine.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 1 << 20, FORMAT_VERSION = 1 };
static const double MOST_WHOLE = 9007199254740992.0; /* 2^53 */

/* One table of fields serves reading and writing. */
enum field_kind { COUNT, NODE, BYTES, LIMIT, RATE, FLAG, NAME };
/* COUNT int >= 0; NODE int >= -1; BYTES int64_t >= 0; LIMIT int64_t >= -1; RATE double >= 0;
 * FLAG bool; NAME char[SW_MACHINE_NAME_BYTES] */

struct field {
    const char *key;
    enum field_kind kind;
    size_t offset;
    bool required;
};

#define GPU(member, kind)                                                                          \
    {                                                                                              \
#member, kind, offsetof(struct sw_machine_gpu, member), false                              \
    }
static const struct field gpu_fields[] = {
    GPU(name, NAME),
    {"memory_bytes", BYTES, offsetof(struct sw_machine_gpu, memory_bytes), true},
    GPU(free_bytes, BYTES),
    GPU(numa_node, NODE),
    GPU(peers, COUNT),
    GPU(h2d_bytes_per_second, RATE),
    GPU(d2h_bytes_per_second, RATE),
    GPU(both_bytes_per_second, RATE),
    GPU(peer_bytes_per_second, RATE),
    GPU(memory_bytes_per_second, RATE),
    GPU(gemm_flops_per_second, RATE),
};

#define DRIVE(member, kind)                                                                        \
    {                                                                                              \
#member, kind, offsetof(struct sw_machine_drive, member), false                            \
    }
static const struct field drive_fields[] = {
    {"directory", NAME, offsetof(struct sw_machine_drive, directory), true},
    DRIVE(device, NAME),
    DRIVE(file_system, NAME),
    DRIVE(free_bytes, BYTES),
    DRIVE(rotational, FLAG),
    DRIVE(memory_backed, FLAG),
    DRIVE(direct, FLAG),
    DRIVE(numa_node, NODE),
    DRIVE(request_bytes, BYTES),
    DRIVE(queue_depth, COUNT),
    DRIVE(read_bytes_per_second, RATE),
    DRIVE(write_bytes_per_second, RATE),
    DRIVE(both_bytes_per_second, RATE),
    DRIVE(transfer_seconds, RATE),
};

#define MACHINE(member, kind)                                                                      \
    {                                                                                              \
#member, kind, offsetof(struct sw_machine, member), false                                  \
    }
static const struct field machine_fields[] = {
    MACHINE(host_name, NAME),
    {"cpus", COUNT, offsetof(struct sw_machine, cpus), true},
    MACHINE(cpus_total, COUNT),
    MACHINE(numa_nodes, COUNT),
    {"memory_total_bytes", BYTES, offsetof(struct sw_machine, memory_total_bytes), true},
    MACHINE(memory_available_bytes, BYTES),
    MACHINE(memory_limit_bytes, LIMIT),
    MACHINE(memlock_bytes, LIMIT),
    MACHINE(io_uring, FLAG),
    MACHINE(gpu_versions, NAME),
    MACHINE(triad_bytes_per_second, RATE),
    MACHINE(memory_bytes_per_second, RATE),
    MACHINE(optimizer_bytes_per_second, RATE),
    MACHINE(memcpy_bytes_per_second, RATE),
    MACHINE(gemm_flops_per_second, RATE),
};

#define TABLE(fields) fields, sizeof fields / sizeof fields[0]

void sw_machine_init(struct sw_machine *machine)
{
    memset(machine, 0, sizeof *machine);
    machine->memory_limit_bytes = machine->memlock_bytes = -1;
    for (int i = 0; i < SW_MACHINE_MAX_GPUS; i++)
        machine->gpus[i].numa_node = -1;
    for (int i = 0; i < SW_MACHINE_MAX_DRIVES; i++)
        machine->drives[i].numa_node = -1;
}

int64_t sw_machine_host_bytes(const struct sw_machine *machine)
{
    int64_t bytes = machine->memory_available_bytes > 0 ? machine->memory_available_bytes
                                                        : machine->memory_total_bytes;
    if (machine->memory_limit_bytes >= 0 && machine->memory_limit_bytes < bytes)
        bytes = machine->memory_limit_bytes;
    return bytes;
}

/* --- Out
 * -------------------------------------------------------------------------------------------*/

static void write_field(struct sw_text *text, const struct field *field, const void *object)
{
    const char *at = (const char *)object + field->offset;
    int count;
    int64_t bytes;
    double rate;
    bool flag;
    switch (field->kind) {
    case COUNT:
    case NODE:
        memcpy(&count, at, sizeof count);
        sw_text_add(text, "%d", count);
        break;
    case BYTES:
    case LIMIT:
        memcpy(&bytes, at, sizeof bytes);
        sw_text_add(text, "%" PRId64, bytes);
        break;
    case RATE:
        memcpy(&rate, at, sizeof rate);
        sw_text_add_json_double(text, rate);
        break;
    case FLAG:
        memcpy(&flag, at, sizeof flag);
        sw_text_add(text, flag ? "true" : "false");
        break;
    case NAME:
        sw_text_add_json_string(text, at);
        break;
    }
}

static void write_object(struct sw_text *text, const struct field *fields, size_t count,
                         const void *object, const char *indent)
{
    for (size_t i = 0; i < count; i++) {
        sw_text_add(text, "%s\"%s\": ", indent, fields[i].key);
        write_field(text, &fields[i], object);
        sw_text_add(text, i + 1 < count ? ",\n" : "");
    }
}

static void write_list(struct sw_text *text, const char *key, const struct field *fields,
                       size_t field_count, const void *objects, size_t object_bytes, int count)
{
    sw_text_add(text, ",\n  \"%s\": [", key);
    for (int i = 0; i < count; i++) {
        sw_text_add(text, "%s\n    {\n", i > 0 ? "," : "");
        write_object(text, fields, field_count, (const char *)objects + (size_t)i * object_bytes,
                     "      ");
        sw_text_add(text, "\n    }");
    }
    sw_text_add(text, count > 0 ? "\n  ]" : "]");
}

sw_code sw_machine_to_json(const struct sw_machine *machine, char **out_text, struct sw_err *err)
{
    struct sw_text text = {0};
    sw_text_add(&text, "{\n  \"format\": %d,\n", (int)FORMAT_VERSION);
    write_object(&text, TABLE(machine_fields), machine, "  ");
    write_list(&text, "gpus", TABLE(gpu_fields), machine->gpus, sizeof machine->gpus[0],
               machine->gpu_count);
    write_list(&text, "drives", TABLE(drive_fields), machine->drives, sizeof machine->drives[0],
               machine->drive_count);
    sw_text_add(&text, "\n}\n");
    sw_code code = sw_text_check(&text, "the description of a machine", err);
    if (code == SW_OK)
        *out_text = text.bytes;
    else
        free(text.bytes);
    return code;
}

/* --- In
 * --------------------------------------------------------------------------------------------*/

/* Where in the file: for messages. */
struct place {
    const char *file;
    const char *list; /* NULL at the top */
    int64_t index;
};

static sw_code refuse(const struct place *place, const char *key, const char *what,
                      struct sw_err *err)
{
    if (place->list == NULL)
        return SW_FAIL(err, SW_E_FORMAT, "%s: %s %s", place->file, key, what);
    return SW_FAIL(err, SW_E_FORMAT, "%s: %s[%lld].%s %s", place->file, place->list,
                   (long long)place->index, key, what);
}

static sw_code read_whole(const struct field *field, const struct sw_json *value, char *at,
                          const struct place *place, struct sw_err *err)
{
    bool small = field->kind == COUNT || field->kind == NODE;
    int64_t least = field->kind == NODE || field->kind == LIMIT ? -1 : 0, whole;
    double real;
    if (!sw_json_to_integer(value, &whole) && sw_json_to_double(value, &real) &&
        fabs(real) <= MOST_WHOLE && real == floor(real)) /* 1e9, as many programs write it */
        whole = (int64_t)real;
    else if (!sw_json_to_integer(value, &whole))
        return refuse(place, field->key, "must be a whole number", err);
    if (whole < least || (small && whole > INT_MAX))
        return refuse(place, field->key, "is out of range", err);
    int count = (int)whole;
    if (small)
        memcpy(at, &count, sizeof count);
    else
        memcpy(at, &whole, sizeof whole);
    return SW_OK;
}

static sw_code read_field(const struct field *field, const struct sw_json *value, void *object,
                          const struct place *place, struct sw_err *err)
{
    char *at = (char *)object + field->offset;
    const char *string;
    double rate;
    bool flag;
    switch (field->kind) {
    case COUNT:
    case NODE:
    case BYTES:
    case LIMIT:
        return read_whole(field, value, at, place, err);
    case RATE:
        if (!sw_json_to_double(value, &rate))
            return refuse(place, field->key, "must be a number", err);
        if (!(rate >= 0 && rate <= 1e30))
            return refuse(place, field->key, "is out of range", err);
        memcpy(at, &rate, sizeof rate);
        break;
    case FLAG:
        if (!sw_json_to_bool(value, &flag))
            return refuse(place, field->key, "must be true or false", err);
        memcpy(at, &flag, sizeof flag);
        break;
    case NAME:
        string = sw_json_to_string(value);
        if (string == NULL)
            return refuse(place, field->key, "must be a string", err);
        if (strlen(string) >= SW_MACHINE_NAME_BYTES)
            return refuse(place, field->key, "is too long", err);
        memcpy(at, string, strlen(string) + 1);
        break;
    }
    return SW_OK;
}

/* Members of `json` that a table knows go into `object`; `others` may hold further known keys. */
static sw_code read_object(const struct field *fields, size_t count, const struct sw_json *json,
                           void *object, const char *const *others, const struct place *place,
                           struct sw_err *err)
{
    const char *key;
    const struct sw_json *value;
    void *cursor = NULL;
    if (sw_json_kind(json) != SW_JSON_OBJECT)
        return refuse(place, "", "must be an object", err);
    while (sw_json_next(json, &cursor, &key, &value)) {
        bool known = false;
        for (size_t i = 0; others != NULL && others[i] != NULL; i++)
            known = known || strcmp(others[i], key) == 0;
        for (size_t i = 0; i < count && !known; i++) {
            if (strcmp(fields[i].key, key) != 0)
                continue;
            known = true;
            sw_code code = read_field(&fields[i], value, object, place, err);
            if (code != SW_OK)
                return code;
        }
        if (!known)
            return refuse(place, key, "is not a key of a machine file", err);
    }
    for (size_t i = 0; i < count; i++)
        if (fields[i].required && sw_json_get(json, fields[i].key) == NULL)
            return refuse(place, fields[i].key, "is missing", err);
    return SW_OK;
}

static sw_code read_list(const char *key, const struct field *fields, size_t field_count,
                         const struct sw_json *root, void *objects, size_t object_bytes, int most,
                         int *out_count, const char *name, struct sw_err *err)
{
    const struct sw_json *list = sw_json_get(root, key);
    struct place place = {name, NULL, 0};
    if (list == NULL)
        return SW_OK;
    if (sw_json_kind(list) != SW_JSON_ARRAY)
        return refuse(&place, key, "must be an array", err);
    if (sw_json_count(list) > most)
        return refuse(&place, key, "has too many elements", err);
    place.list = key;
    for (; place.index < sw_json_count(list); place.index++) {
        sw_code code =
            read_object(fields, field_count, sw_json_at(list, place.index),
                        (char *)objects + (size_t)place.index * object_bytes, NULL, &place, err);
        if (code != SW_OK)
            return code;
    }
    *out_count = (int)sw_json_count(list);
    return SW_OK;
}

static sw_code read_machine(const struct sw_json *root, const char *name, struct sw_machine *out,
                            struct sw_err *err)
{
    static const char *const others[] = {"format", "gpus", "drives", NULL};
    struct place place = {name, NULL, 0};
    int64_t format;
    const struct sw_json *value = sw_json_get(root, "format");
    if (value != NULL && (!sw_json_to_integer(value, &format) || format != FORMAT_VERSION))
        return refuse(&place, "format", "is not one this version reads (1)", err);
    sw_code code = read_object(TABLE(machine_fields), root, out, others, &place, err);
    if (code == SW_OK && out->cpus < 1)
        code = refuse(&place, "cpus", "must be at least 1", err);
    if (code == SW_OK)
        code = read_list("gpus", TABLE(gpu_fields), root, out->gpus, sizeof out->gpus[0],
                         SW_MACHINE_MAX_GPUS, &out->gpu_count, name, err);
    if (code == SW_OK)
        code = read_list("drives", TABLE(drive_fields), root, out->drives, sizeof out->drives[0],
                         SW_MACHINE_MAX_DRIVES, &out->drive_count, name, err);
    return code;
}

sw_code sw_machine_from_json(const char *text, int64_t bytes, const char *name,
                             struct sw_machine *out, struct sw_err *err)
{
    struct sw_json *root = NULL;
    struct sw_machine *machine = sw_calloc(1, sizeof *machine);
    if (machine == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the description of a machine");
    sw_machine_init(machine);
    sw_code code = sw_json_parse(text, bytes, name, &root, err);
    if (code == SW_OK)
        code = read_machine(root, name, machine, err);
    if (code == SW_OK)
        *out = *machine;
    sw_json_free(root);
    free(machine);
    return code;
}

sw_code sw_machine_read(const char *path, struct sw_machine *out, struct sw_err *err)
{
    char *text;
    int64_t bytes;
    sw_code code = sw_file_read(path, MAX_FILE_BYTES, &text, &bytes, err);
    if (code != SW_OK)
        return code;
    code = sw_machine_from_json(text, bytes, path, out, err);
    free(text);
    return code;
}

sw_code sw_machine_write(const char *path, const struct sw_machine *machine, struct sw_err *err)
{
    char *text;
    sw_code code = sw_machine_to_json(machine, &text, err);
    if (code != SW_OK)
        return code;
    code = sw_file_write_atomic(path, text, (int64_t)strlen(text), err);
    free(text);
    return code;
}
