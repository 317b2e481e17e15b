/* Cross-entropy, log-probabilities, and the sum of losses. One row of logits a task. */
#include "kernels/cpu/cpu.h"

struct job {
    const struct sw_cross_entropy *entropy;
    float *out;
    void *dlogits;
    enum sw_dtype dlogits_dtype;
    const float *logits;
    const int32_t *labels;
    int64_t vocabulary;
};

static void entropy_task(void *context, int64_t row, int64_t worker)
{
    const struct job *job = context;
    int64_t at = row * job->vocabulary;
    (void)worker;
    sw_assert(job->labels[row] >= 0 && job->labels[row] < job->vocabulary);
    void *d = job->dlogits != NULL ? sw_cpu_at_mutable(job->dlogits, at, job->dlogits_dtype) : NULL;
    job->out[row] = sw_cpu_lanes()->cross_entropy(job->entropy, d, job->dlogits_dtype,
                                                  job->logits + at, job->labels[row]);
}

void sw_cpu_cross_entropy(struct sw_stream *stream, const struct sw_cross_entropy *entropy,
                          float *loss, void *dlogits, enum sw_dtype dlogits_dtype,
                          const float *logits, const int32_t *labels)
{
    struct job job = {.entropy = entropy,
                      .out = loss,
                      .dlogits = dlogits,
                      .dlogits_dtype = dlogits_dtype,
                      .logits = logits,
                      .labels = labels,
                      .vocabulary = entropy->vocabulary};
    sw_cpu_run(stream, entropy_task, &job, entropy->rows);
}

void sw_cpu_sum_in_order(struct sw_stream *stream, double *sum, const float *values, int64_t count)
{
    if (sw_cpu_failed(stream))
        return;
    double total = *sum;
    for (int64_t i = 0; i < count; i++)
        total += (double)values[i];
    *sum = total;
}

static void log_softmax_task(void *context, int64_t row, int64_t worker)
{
    const struct job *job = context;
    int64_t at = row * job->vocabulary;
    (void)worker;
    sw_cpu_lanes()->log_softmax(job->out + at, job->logits + at, job->vocabulary);
}

void sw_cpu_log_softmax(struct sw_stream *stream, float *log_probabilities, const float *logits,
                        int64_t rows, int64_t vocabulary)
{
    struct job job = {.out = log_probabilities, .logits = logits, .vocabulary = vocabulary};
    sw_cpu_run(stream, log_softmax_task, &job, rows);
}
