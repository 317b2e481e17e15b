/* Inside of the pickle reader: the machine, and what its parts share. Functions fail as
 * sw_pickle_parse() does, with the machine's err. */
#ifndef SPILLWAY_IO_PICKLE_MACHINE_H
#define SPILLWAY_IO_PICKLE_MACHINE_H

#include "io/pickle.h"

#include <stddef.h>

struct sw_pickle_block {
    struct sw_pickle_block *next;
    int64_t used, size;
    max_align_t data[];
};

struct sw_pickle {
    const struct sw_pickle_value *root;
    struct sw_pickle_storage **storages;
    int64_t storage_count, storage_capacity;
    struct sw_pickle_block *blocks; /* the arena of all values */
    int64_t value_count;
};

/* The machine while it runs. */
struct sw_pickle_machine {
    struct sw_pickle *pickle;
    const unsigned char *bytes;
    int64_t size, position, opcode_position;
    const char *what;
    struct sw_pickle_value **stack;
    int64_t stack_count, stack_capacity;
    struct sw_pickle_value **memo;
    int64_t memo_count, memo_capacity; /* memo_count: highest index used, plus 1 */
    struct sw_err *err;
};

/* The pickle is not what it should be, at the current opcode. */
sw_code sw_pickle_malformed(const struct sw_pickle_machine *m, const char *reason);
sw_code sw_pickle_no_memory(const struct sw_pickle_machine *m);
/* Zeroed memory that lives as long as the pickle; NULL when there is none. */
void *sw_pickle_arena_take(struct sw_pickle *pickle, int64_t bytes);
/* A name up to the end of the line, into `out` of `size` bytes. */
sw_code sw_pickle_take_line(struct sw_pickle_machine *m, char *out, int64_t size);

sw_code sw_pickle_push(struct sw_pickle_machine *m, struct sw_pickle_value *value);
/* Make a value and push it; fill it in through *out. */
sw_code sw_pickle_push_new(struct sw_pickle_machine *m, enum sw_pickle_kind kind,
                           struct sw_pickle_value **out);
sw_code sw_pickle_pop(struct sw_pickle_machine *m, struct sw_pickle_value **out);
/* The value on top, which stays and must be of that kind. */
sw_code sw_pickle_top(const struct sw_pickle_machine *m, enum sw_pickle_kind kind,
                      struct sw_pickle_value **out);
/* Add `count` values to a tuple, list or dict. */
sw_code sw_pickle_extend(struct sw_pickle_machine *m, struct sw_pickle_value *list,
                         struct sw_pickle_value *const *items, int64_t count);

/* Opcodes that stand for PyTorch's things: io/pickle_torch.c. */
sw_code sw_pickle_push_global_line(struct sw_pickle_machine *m);  /* GLOBAL */
sw_code sw_pickle_push_global_stack(struct sw_pickle_machine *m); /* STACK_GLOBAL */
sw_code sw_pickle_call(struct sw_pickle_machine *m);              /* REDUCE */
sw_code sw_pickle_build(struct sw_pickle_machine *m);             /* BUILD */
sw_code sw_pickle_push_storage(struct sw_pickle_machine *m);      /* BINPERSID */

#endif
