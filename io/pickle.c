#include "io/pickle_machine.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Opcodes: https://github.com/python/cpython/blob/main/Lib/pickletools.py. Those of protocol 2, the
 * one torch.save() writes by default, and what 3 to 5 add for the same values. */
enum opcode {
    OP_MARK = '(',
    OP_STOP = '.',
    OP_POP = '0',
    OP_POP_MARK = '1',
    OP_DUP = '2',
    OP_BININT = 'J',
    OP_BININT1 = 'K',
    OP_BININT2 = 'M',
    OP_NONE = 'N',
    OP_BINPERSID = 'Q',
    OP_REDUCE = 'R',
    OP_BINSTRING = 'T',
    OP_SHORT_BINSTRING = 'U',
    OP_BINUNICODE = 'X',
    OP_APPEND = 'a',
    OP_BUILD = 'b',
    OP_GLOBAL = 'c',
    OP_DICT = 'd',
    OP_APPENDS = 'e',
    OP_BINGET = 'h',
    OP_LONG_BINGET = 'j',
    OP_LIST = 'l',
    OP_BINPUT = 'q',
    OP_LONG_BINPUT = 'r',
    OP_SETITEM = 's',
    OP_TUPLE = 't',
    OP_EMPTY_TUPLE = ')',
    OP_SETITEMS = 'u',
    OP_EMPTY_DICT = '}',
    OP_EMPTY_LIST = ']',
    OP_PROTO = 0x80,
    OP_TUPLE1 = 0x85,
    OP_TUPLE2 = 0x86,
    OP_TUPLE3 = 0x87,
    OP_NEWTRUE = 0x88,
    OP_NEWFALSE = 0x89,
    OP_LONG1 = 0x8A,
    OP_SHORT_BINUNICODE = 0x8C,
    OP_BINUNICODE8 = 0x8D,
    OP_STACK_GLOBAL = 0x93,
    OP_MEMOIZE = 0x94,
    OP_FRAME = 0x95,
};

enum { ARENA_BLOCK_BYTES = 1 << 16, HIGHEST_PROTOCOL = 5 };

const char *sw_pickle_kind_name(enum sw_pickle_kind kind)
{
    static const char *const names[] = {
        [SW_PICKLE_NONE] = "None",         [SW_PICKLE_BOOL] = "a bool",
        [SW_PICKLE_INTEGER] = "an int",    [SW_PICKLE_BIG] = "a large int",
        [SW_PICKLE_STRING] = "a string",   [SW_PICKLE_TUPLE] = "a tuple",
        [SW_PICKLE_LIST] = "a list",       [SW_PICKLE_DICT] = "a dict",
        [SW_PICKLE_GLOBAL] = "a function", [SW_PICKLE_STORAGE] = "a storage",
        [SW_PICKLE_TENSOR] = "a tensor",   [SW_PICKLE_MARK] = "a mark",
    };
    return names[kind];
}

sw_code sw_pickle_malformed(const struct sw_pickle_machine *m, const char *reason)
{
    return SW_FAIL(m->err, SW_E_FORMAT, "%s is not a valid pickle: byte %lld: %s", m->what,
                   (long long)m->opcode_position, reason);
}

sw_code sw_pickle_no_memory(const struct sw_pickle_machine *m)
{
    return SW_FAIL(m->err, SW_E_MEMORY, "no memory to read %s", m->what);
}

void *sw_pickle_arena_take(struct sw_pickle *pickle, int64_t bytes)
{
    bytes = sw_align_up(bytes, (int64_t)sizeof(max_align_t));
    if (pickle->blocks == NULL || pickle->blocks->size - pickle->blocks->used < bytes) {
        int64_t size = bytes > ARENA_BLOCK_BYTES ? bytes : ARENA_BLOCK_BYTES;
        struct sw_pickle_block *block = sw_calloc((int64_t)sizeof *block + size, 1);
        if (block == NULL)
            return NULL;
        block->size = size;
        block->next = pickle->blocks;
        pickle->blocks = block;
    }
    char *taken = (char *)pickle->blocks->data + pickle->blocks->used;
    pickle->blocks->used += bytes;
    return taken;
}

/* --- stack ------------------------------------------------------------------------------------ */

sw_code sw_pickle_push(struct sw_pickle_machine *m, struct sw_pickle_value *value)
{
    void *array = m->stack;
    if (m->stack_count >= SW_PICKLE_MAX_VALUES)
        return sw_pickle_malformed(m, "more values than weights need");
    if (!sw_array_reserve(&array, &m->stack_capacity, m->stack_count, sizeof m->stack[0]))
        return sw_pickle_no_memory(m);
    m->stack = array;
    m->stack[m->stack_count++] = value;
    return SW_OK;
}

sw_code sw_pickle_push_new(struct sw_pickle_machine *m, enum sw_pickle_kind kind,
                           struct sw_pickle_value **out)
{
    if (++m->pickle->value_count > SW_PICKLE_MAX_VALUES)
        return sw_pickle_malformed(m, "more values than weights need");
    struct sw_pickle_value *value = sw_pickle_arena_take(m->pickle, sizeof *value);
    if (value == NULL)
        return sw_pickle_no_memory(m);
    value->kind = kind;
    *out = value;
    return sw_pickle_push(m, value);
}

sw_code sw_pickle_pop(struct sw_pickle_machine *m, struct sw_pickle_value **out)
{
    if (m->stack_count == 0 || m->stack[m->stack_count - 1]->kind == SW_PICKLE_MARK)
        return sw_pickle_malformed(m, "it takes a value where there is none");
    *out = m->stack[--m->stack_count];
    return SW_OK;
}

sw_code sw_pickle_top(const struct sw_pickle_machine *m, enum sw_pickle_kind kind,
                      struct sw_pickle_value **out)
{
    if (m->stack_count == 0 || m->stack[m->stack_count - 1]->kind != kind)
        return SW_FAIL(m->err, SW_E_FORMAT, "%s is not a valid pickle: byte %lld: it needs %s here",
                       m->what, (long long)m->opcode_position, sw_pickle_kind_name(kind));
    *out = m->stack[m->stack_count - 1];
    return SW_OK;
}

/* Take all values above the last mark, and the mark. They stay readable at *items until the next
 * push. */
static sw_code pop_mark(struct sw_pickle_machine *m, struct sw_pickle_value ***items,
                        int64_t *count)
{
    int64_t at = m->stack_count;
    while (at > 0 && m->stack[at - 1]->kind != SW_PICKLE_MARK)
        at--;
    if (at == 0)
        return sw_pickle_malformed(m, "it looks for a mark that is not there");
    *items = m->stack + at;
    *count = m->stack_count - at;
    m->stack_count = at - 1;
    return SW_OK;
}

sw_code sw_pickle_extend(struct sw_pickle_machine *m, struct sw_pickle_value *list,
                         struct sw_pickle_value *const *items, int64_t count)
{
    int64_t wanted = list->list.count + count;
    /* Each item counts again: containers may hold one value many times. */
    m->pickle->value_count += count;
    if (m->pickle->value_count > SW_PICKLE_MAX_VALUES)
        return sw_pickle_malformed(m, "more values than weights need");
    if (wanted > list->list.capacity) {
        int64_t capacity =
            wanted > 2 * (int64_t)list->list.capacity ? wanted : 2 * list->list.capacity;
        struct sw_pickle_value **grown =
            sw_pickle_arena_take(m->pickle, capacity * (int64_t)sizeof *grown);
        if (grown == NULL)
            return sw_pickle_no_memory(m);
        if (list->list.count > 0)
            memcpy(grown, list->list.items, (size_t)list->list.count * sizeof *grown);
        list->list.items = grown;
        list->list.capacity = (int32_t)capacity;
    }
    if (count > 0)
        memcpy(list->list.items + list->list.count, items, (size_t)count * sizeof *items);
    list->list.count = (int32_t)wanted;
    return SW_OK;
}

/* --- operands --------------------------------------------------------------------------------- */

static sw_code take(struct sw_pickle_machine *m, int64_t count, const unsigned char **out)
{
    if (count > m->size - m->position)
        return sw_pickle_malformed(m, "it ends in the middle");
    *out = m->bytes + m->position;
    m->position += count;
    return SW_OK;
}

/* A little-endian operand of 1 to 8 bytes. */
static sw_code take_unsigned(struct sw_pickle_machine *m, int bytes, uint64_t *out)
{
    const unsigned char *from = NULL;
    uint64_t value = 0;
    sw_code code = take(m, bytes, &from);
    if (code != SW_OK)
        return code;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)from[i] << (8 * i);
    *out = value;
    return SW_OK;
}

sw_code sw_pickle_take_line(struct sw_pickle_machine *m, char *out, int64_t size)
{
    const unsigned char *from = m->bytes + m->position;
    const unsigned char *end = memchr(from, '\n', (size_t)(m->size - m->position));
    if (end == NULL || end - from >= size)
        return sw_pickle_malformed(m, "a name has no end");
    memcpy(out, from, (size_t)(end - from));
    out[end - from] = '\0';
    m->position += end - from + 1;
    return SW_OK;
}

static sw_code push_integer(struct sw_pickle_machine *m, enum sw_pickle_kind kind, int64_t integer)
{
    struct sw_pickle_value *value;
    sw_code code = sw_pickle_push_new(m, kind, &value);
    if (code == SW_OK)
        value->integer = integer;
    return code;
}

static sw_code push_string(struct sw_pickle_machine *m, int length_bytes)
{
    uint64_t length = 0;
    const unsigned char *from = NULL;
    struct sw_pickle_value *value = NULL;
    sw_code code = take_unsigned(m, length_bytes, &length);
    if (code != SW_OK)
        return code;
    if (length > SW_PICKLE_MAX_BYTES)
        return sw_pickle_malformed(m, "a string is longer than the file");
    code = take(m, (int64_t)length, &from);
    if (code == SW_OK)
        code = sw_pickle_push_new(m, SW_PICKLE_STRING, &value);
    if (code != SW_OK)
        return code;
    if (memchr(from, '\0', length) != NULL)
        return sw_pickle_malformed(m, "a string has a zero byte");
    char *copy = sw_pickle_arena_take(m->pickle, (int64_t)length + 1);
    if (copy == NULL)
        return sw_pickle_no_memory(m);
    memcpy(copy, from, length);
    value->string = copy;
    return SW_OK;
}

/* LONG1: `length` bytes, little-endian, two's complement. */
static sw_code push_long(struct sw_pickle_machine *m)
{
    uint64_t length = 0;
    const unsigned char *from = NULL;
    struct sw_pickle_value *value = NULL;
    sw_code code = take_unsigned(m, 1, &length);
    if (code == SW_OK)
        code = take(m, (int64_t)length, &from);
    if (code != SW_OK)
        return code;
    if (length > SW_PICKLE_BIG_BYTES)
        return sw_pickle_malformed(m, "an integer is too large");
    code = sw_pickle_push_new(m, length > 8 ? SW_PICKLE_BIG : SW_PICKLE_INTEGER, &value);
    if (code != SW_OK)
        return code;
    unsigned char wide[SW_PICKLE_BIG_BYTES];
    memset(wide, length > 0 && (from[length - 1] & 0x80) != 0 ? 0xFF : 0, sizeof wide);
    memcpy(wide, from, length);
    if (length > 8)
        memcpy(value->big, wide, sizeof wide);
    else
        memcpy(&value->integer, wide, sizeof value->integer);
    return SW_OK;
}

/* --- memo ------------------------------------------------------------------------------------- */

static sw_code put(struct sw_pickle_machine *m, uint64_t index)
{
    void *array = m->memo;
    int64_t before = m->memo_capacity;
    if (index >= SW_PICKLE_MAX_VALUES)
        return sw_pickle_malformed(m, "a memo index is larger than weights need");
    if (m->stack_count == 0 || m->stack[m->stack_count - 1]->kind == SW_PICKLE_MARK)
        return sw_pickle_malformed(m, "it remembers a value where there is none");
    if (!sw_array_reserve(&array, &m->memo_capacity, (int64_t)index, sizeof m->memo[0]))
        return sw_pickle_no_memory(m);
    m->memo = array;
    for (int64_t i = before; i < m->memo_capacity; i++)
        m->memo[i] = NULL;
    m->memo[index] = m->stack[m->stack_count - 1];
    if ((int64_t)index >= m->memo_count)
        m->memo_count = (int64_t)index + 1;
    return SW_OK;
}

static sw_code get(struct sw_pickle_machine *m, uint64_t index)
{
    if (index >= (uint64_t)m->memo_count || m->memo[index] == NULL)
        return sw_pickle_malformed(m, "it recalls a value that it never remembered");
    return sw_pickle_push(m, m->memo[index]);
}

/* put() or get() with an operand of `bytes` bytes. */
static sw_code at_index(struct sw_pickle_machine *m, int bytes,
                        sw_code (*act)(struct sw_pickle_machine *, uint64_t))
{
    uint64_t index = 0;
    sw_code code = take_unsigned(m, bytes, &index);
    return code == SW_OK ? act(m, index) : code;
}

/* --- containers ------------------------------------------------------------------------------- */

static sw_code push_collection(struct sw_pickle_machine *m, enum sw_pickle_kind kind,
                               struct sw_pickle_value *const *items, int64_t count)
{
    struct sw_pickle_value *value;
    if (kind == SW_PICKLE_DICT && count % 2 != 0)
        return sw_pickle_malformed(m, "a key has no value");
    /* `items` may lie in the stack, right where the new value goes: extend first. */
    struct sw_pickle_value made = {.kind = kind};
    sw_code code = sw_pickle_extend(m, &made, items, count);
    if (code == SW_OK)
        code = sw_pickle_push_new(m, kind, &value);
    if (code == SW_OK)
        *value = made;
    return code;
}

static sw_code push_marked(struct sw_pickle_machine *m, enum sw_pickle_kind kind)
{
    struct sw_pickle_value **items = NULL;
    int64_t count = 0;
    sw_code code = pop_mark(m, &items, &count);
    return code == SW_OK ? push_collection(m, kind, items, count) : code;
}

static sw_code push_tuple(struct sw_pickle_machine *m, int64_t count)
{
    for (int64_t i = 1; i <= count; i++)
        if (m->stack_count < i || m->stack[m->stack_count - i]->kind == SW_PICKLE_MARK)
            return sw_pickle_malformed(m, "it takes a value where there is none");
    m->stack_count -= count;
    return push_collection(m, SW_PICKLE_TUPLE, m->stack + m->stack_count, count);
}

/* Items above the mark go into the list or dict below it. */
static sw_code extend_marked(struct sw_pickle_machine *m, enum sw_pickle_kind kind)
{
    struct sw_pickle_value **items = NULL, *target = NULL;
    int64_t count = 0;
    sw_code code = pop_mark(m, &items, &count);
    if (code == SW_OK)
        code = sw_pickle_top(m, kind, &target);
    if (code == SW_OK && kind == SW_PICKLE_DICT && count % 2 != 0)
        return sw_pickle_malformed(m, "a key has no value");
    return code == SW_OK ? sw_pickle_extend(m, target, items, count) : code;
}

/* The last one (list) or two (dict) values go into the container below them. */
static sw_code extend_one(struct sw_pickle_machine *m, enum sw_pickle_kind kind)
{
    int64_t count = kind == SW_PICKLE_DICT ? 2 : 1;
    struct sw_pickle_value *items[2] = {NULL, NULL}, *target = NULL;
    sw_code code = SW_OK;
    for (int64_t i = count - 1; i >= 0 && code == SW_OK; i--)
        code = sw_pickle_pop(m, &items[i]);
    if (code == SW_OK)
        code = sw_pickle_top(m, kind, &target);
    return code == SW_OK ? sw_pickle_extend(m, target, items, count) : code;
}

/* --- the machine ------------------------------------------------------------------------------ */

static sw_code refuse_opcode(const struct sw_pickle_machine *m, unsigned char opcode)
{
    static const struct {
        unsigned char opcode;
        const char *name;
    } known[] = {
        {0x81, "make an object (NEWOBJ)"},    {0x92, "make an object (NEWOBJ_EX)"},
        {'i', "make an object (INST)"},       {'o', "make an object (OBJ)"},
        {'G', "hold a float (BINFLOAT)"},     {'F', "hold a float (FLOAT)"},
        {'B', "hold bytes (BINBYTES)"},       {'C', "hold bytes (SHORT_BINBYTES)"},
        {0x8F, "hold a set (EMPTY_SET)"},     {0x82, "use an extension (EXT1)"},
        {0x83, "use an extension (EXT2)"},    {0x84, "use an extension (EXT4)"},
        {0x97, "use a buffer (NEXT_BUFFER)"}, {0x96, "hold bytes (BYTEARRAY8)"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].opcode == opcode)
            return SW_FAIL(m->err, SW_E_FORMAT,
                           "%s wants to %s at byte %lld, which plain weights do not need: refused, "
                           "nothing was executed",
                           m->what, known[i].name, (long long)m->opcode_position);
    return SW_FAIL(m->err, SW_E_FORMAT,
                   "%s is not a pickle of plain weights: opcode 0x%02x at byte %lld", m->what,
                   (unsigned)opcode, (long long)m->opcode_position);
}

static sw_code skip(struct sw_pickle_machine *m, enum opcode opcode)
{
    uint64_t operand = 0;
    sw_code code = take_unsigned(m, opcode == OP_PROTO ? 1 : 8, &operand);
    if (code == SW_OK && opcode == OP_PROTO && operand > HIGHEST_PROTOCOL)
        return sw_pickle_malformed(m, "its protocol is unknown");
    if (code == SW_OK && opcode == OP_FRAME && operand > (uint64_t)(m->size - m->position))
        return sw_pickle_malformed(m, "it ends in the middle");
    return code;
}

static sw_code push_signed(struct sw_pickle_machine *m)
{
    uint64_t bits = 0;
    sw_code code = take_unsigned(m, 4, &bits);
    return code == SW_OK ? push_integer(m, SW_PICKLE_INTEGER, (int32_t)(uint32_t)bits) : code;
}

static sw_code push_unsigned(struct sw_pickle_machine *m, int bytes)
{
    uint64_t bits = 0;
    sw_code code = take_unsigned(m, bytes, &bits);
    return code == SW_OK ? push_integer(m, SW_PICKLE_INTEGER, (int64_t)bits) : code;
}

/* Opcodes that move what is on the stack. */
static sw_code step_stack(struct sw_pickle_machine *m, unsigned char opcode)
{
    struct sw_pickle_value *value = NULL, **items = NULL;
    int64_t count = 0;
    switch (opcode) {
    case OP_MARK:
        return sw_pickle_push_new(m, SW_PICKLE_MARK, &value);
    case OP_POP:
        return sw_pickle_pop(m, &value);
    case OP_POP_MARK:
        return pop_mark(m, &items, &count);
    case OP_DUP:
        if (m->stack_count == 0 || m->stack[m->stack_count - 1]->kind == SW_PICKLE_MARK)
            return sw_pickle_malformed(m, "it takes a value where there is none");
        return sw_pickle_push(m, m->stack[m->stack_count - 1]);
    case OP_BINPUT:
        return at_index(m, 1, put);
    case OP_LONG_BINPUT:
        return at_index(m, 4, put);
    case OP_MEMOIZE:
        return put(m, (uint64_t)m->memo_count);
    case OP_BINGET:
        return at_index(m, 1, get);
    case OP_LONG_BINGET:
        return at_index(m, 4, get);
    case OP_GLOBAL:
        return sw_pickle_push_global_line(m);
    case OP_STACK_GLOBAL:
        return sw_pickle_push_global_stack(m);
    case OP_REDUCE:
        return sw_pickle_call(m);
    case OP_BUILD:
        return sw_pickle_build(m);
    case OP_BINPERSID:
        return sw_pickle_push_storage(m);
    default:
        return refuse_opcode(m, opcode);
    }
}

/* Opcodes that make containers and fill them. */
static sw_code step_container(struct sw_pickle_machine *m, unsigned char opcode)
{
    switch (opcode) {
    case OP_EMPTY_TUPLE:
    case OP_EMPTY_LIST:
    case OP_EMPTY_DICT:
        return push_collection(m,
                               opcode == OP_EMPTY_TUPLE  ? SW_PICKLE_TUPLE
                               : opcode == OP_EMPTY_LIST ? SW_PICKLE_LIST
                                                         : SW_PICKLE_DICT,
                               NULL, 0);
    case OP_TUPLE:
    case OP_LIST:
    case OP_DICT:
        return push_marked(m, opcode == OP_TUPLE  ? SW_PICKLE_TUPLE
                              : opcode == OP_LIST ? SW_PICKLE_LIST
                                                  : SW_PICKLE_DICT);
    case OP_TUPLE1:
    case OP_TUPLE2:
    case OP_TUPLE3:
        return push_tuple(m, opcode - OP_TUPLE1 + 1);
    case OP_APPEND:
    case OP_SETITEM:
        return extend_one(m, opcode == OP_APPEND ? SW_PICKLE_LIST : SW_PICKLE_DICT);
    case OP_APPENDS:
    case OP_SETITEMS:
        return extend_marked(m, opcode == OP_APPENDS ? SW_PICKLE_LIST : SW_PICKLE_DICT);
    default:
        return step_stack(m, opcode);
    }
}

/* Opcodes that make values. */
static sw_code step(struct sw_pickle_machine *m, unsigned char opcode)
{
    switch (opcode) {
    case OP_PROTO:
    case OP_FRAME:
        return skip(m, opcode);
    case OP_NONE:
        return push_integer(m, SW_PICKLE_NONE, 0);
    case OP_NEWTRUE:
    case OP_NEWFALSE:
        return push_integer(m, SW_PICKLE_BOOL, opcode == OP_NEWTRUE);
    case OP_BININT:
        return push_signed(m);
    case OP_BININT1:
        return push_unsigned(m, 1);
    case OP_BININT2:
        return push_unsigned(m, 2);
    case OP_LONG1:
        return push_long(m);
    case OP_SHORT_BINSTRING:
    case OP_SHORT_BINUNICODE:
        return push_string(m, 1);
    case OP_BINSTRING:
    case OP_BINUNICODE:
        return push_string(m, 4);
    case OP_BINUNICODE8:
        return push_string(m, 8);
    default:
        return step_container(m, opcode);
    }
}

static sw_code run(struct sw_pickle_machine *m)
{
    struct sw_pickle_value *root = NULL;
    for (;;) {
        const unsigned char *opcode = NULL;
        m->opcode_position = m->position;
        sw_code code = take(m, 1, &opcode);
        if (code == SW_OK && *opcode == OP_STOP)
            break;
        if (code == SW_OK)
            code = step(m, *opcode);
        if (code != SW_OK)
            return code;
    }
    sw_code code = sw_pickle_pop(m, &root);
    if (code == SW_OK && m->stack_count != 0)
        return sw_pickle_malformed(m, "it leaves values behind");
    m->pickle->root = root;
    return code;
}

sw_code sw_pickle_parse(const char *bytes, int64_t size, const char *what, struct sw_pickle **out,
                        int64_t *used_bytes, struct sw_err *err)
{
    struct sw_pickle *pickle = sw_calloc(1, sizeof *pickle);
    struct sw_pickle_machine m = {.pickle = pickle,
                                  .bytes = (const unsigned char *)bytes,
                                  .size = size,
                                  .what = what,
                                  .err = err};
    if (pickle == NULL)
        return sw_pickle_no_memory(&m);
    sw_code code = run(&m);
    free(m.stack);
    free(m.memo);
    if (code != SW_OK) {
        sw_pickle_free(pickle);
        return code;
    }
    *out = pickle;
    if (used_bytes != NULL)
        *used_bytes = m.position;
    return SW_OK;
}

void sw_pickle_free(struct sw_pickle *pickle)
{
    if (pickle == NULL)
        return;
    while (pickle->blocks != NULL) {
        struct sw_pickle_block *next = pickle->blocks->next;
        free(pickle->blocks);
        pickle->blocks = next;
    }
    free(pickle->storages);
    free(pickle);
}

const struct sw_pickle_value *sw_pickle_root(const struct sw_pickle *pickle)
{
    return pickle->root;
}

struct sw_pickle_storage **sw_pickle_storages(const struct sw_pickle *pickle, int64_t *count)
{
    *count = pickle->storage_count;
    return pickle->storages;
}
