/* The kernels' test cases, one table for every back end: a case makes its inputs, runs on a device
 * and knows what must come out. */
#ifndef SPILLWAY_TESTS_OP_CASES_H
#define SPILLWAY_TESTS_OP_CASES_H

#include "kernels/kernels.h"

enum { OP_ROWS = 6, OP_OUTPUTS = 4 };

struct op_session; /* a case that runs */

struct op_case {
    const char *name;
    void (*run)(const struct op_case *, struct op_session *);
    enum sw_dtype dtype;
    /* gemm */
    int64_t m, n, k;
    bool trans_a, trans_b;
    float alpha, beta;
    bool apart; /* what is added to is not C */
    enum sw_dtype c_dtype;
    /* norm, feed-forward, residual, embedding, loss: rows come from `queries` or m */
    int64_t width;
    enum sw_activation activation;
    bool gated, in_place, without;
    float p;         /* of dropout */
    float smoothing; /* of labels */
    float size;      /* of logits, or of queries: 0 means 1 */
    /* rows of queries and keys */
    int64_t rows;
    int32_t queries[OP_ROWS], keys[OP_ROWS];
    int32_t key_gap; /* tokens between rows of keys that belong to none */
    bool same_keys;  /* every row reads the first row's keys */
    bool aligned;    /* no odd gaps between rows as stored, tokens on multiples of 16 bytes */
    int64_t heads, head_dim, reach;
    float scale;
    bool causal;
};

/* One output: what came, what should have. */
struct op_output {
    const char *name;
    int64_t count, bytes;
    enum sw_dtype dtype;
    bool is_double;
    void *bits;       /* from the device, owned */
    double *want;     /* owned */
    double tolerance; /* absolute; bf16 outputs get 2^-8 of the value on top */
};

struct op_result {
    struct op_output outputs[OP_OUTPUTS];
    int count;
};

/* The table; ends with a case whose name is NULL. */
extern const struct op_case op_cases[];

/* Runs the case on a fresh device and fetches the outputs; the test fails when something around
 * them was written. With `expect`, what should come out is worked out too. */
void op_case_run(const struct op_case *c, const struct sw_device_ops *ops, struct sw_pool *pool,
                 bool expect, struct op_result *result);
/* False, with the worst element printed, when an output is further from what it should be than its
 * tolerance. */
bool op_result_agrees(const struct op_case *c, const struct op_result *result);
/* The test fails then. */
void op_result_check(const struct op_case *c, const struct op_result *result);
double op_output_at(const struct op_output *output, int64_t index);
void op_result_free(struct op_result *result);

#endif
