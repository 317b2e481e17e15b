/* What an op costs on a machine: bytes and flops by measured rates, and what it shares. */
#include "plan/search.h"

/* Rates that were not measured are taken from this: a plain desktop. Then nothing is predicted, but
 * choices have something to go by. */
static const struct sw_plan_rates NOMINAL = {
    .gemm_flops = 2e11,
    .device_bytes = 2e10,
    .optimizer_bytes = 1.5e10,
    .host_bytes = 2e10,
    .h2d_bytes = 1e10,
    .d2h_bytes = 1e10,
    .peer_bytes = 1e10,
    .nvme_read_bytes = 2.5e9,
    .nvme_write_bytes = 1.5e9,
};

/* The same with a GPU of 2020 or later beside the host. */
static const struct sw_plan_rates NOMINAL_GPU = {
    .gemm_flops = 1e14,
    .device_bytes = 8e11,
    .optimizer_bytes = 4e10,
    .host_bytes = 4e10,
    .h2d_bytes = 2.2e10,
    .d2h_bytes = 2.2e10,
    .peer_bytes = 2e10,
    .nvme_read_bytes = 2.5e9,
    .nvme_write_bytes = 1.5e9,
};

static double or_else(double measured, double nominal)
{
    return measured > 0 ? measured : nominal;
}

struct sw_plan_rates sw_plan_rates_complete(const struct sw_plan_rates *rates)
{
    const struct sw_plan_rates *nominal = rates->device_is_host ? &NOMINAL : &NOMINAL_GPU;
    struct sw_plan_rates out = *rates;
    out.gemm_flops = or_else(rates->gemm_flops, nominal->gemm_flops);
    out.host_bytes = or_else(rates->host_bytes, nominal->host_bytes);
    out.memory_bytes = or_else(rates->memory_bytes, out.host_bytes);
    out.device_bytes = or_else(rates->device_bytes,
                               rates->device_is_host ? out.host_bytes : nominal->device_bytes);
    out.optimizer_bytes = or_else(rates->optimizer_bytes, out.host_bytes);
    out.h2d_bytes = or_else(rates->h2d_bytes, nominal->h2d_bytes);
    out.d2h_bytes = or_else(rates->d2h_bytes, nominal->d2h_bytes);
    out.both_bytes = or_else(rates->both_bytes, out.h2d_bytes + out.d2h_bytes);
    out.peer_bytes = or_else(rates->peer_bytes, out.h2d_bytes);
    out.nvme_read_bytes = or_else(rates->nvme_read_bytes, nominal->nvme_read_bytes);
    out.nvme_write_bytes = or_else(rates->nvme_write_bytes, nominal->nvme_write_bytes);
    return out;
}

void sw_plan_rates_of_machine(const struct sw_machine *machine, bool gpu, struct sw_plan_rates *out)
{
    *out = (struct sw_plan_rates){
        .device_is_host = !gpu,
        .gemm_flops = machine->gemm_flops_per_second,
        .device_bytes = machine->triad_bytes_per_second,
        .optimizer_bytes = machine->optimizer_bytes_per_second,
        .host_bytes = machine->triad_bytes_per_second,
        .memory_bytes = machine->memory_bytes_per_second,
        /* A copy reads and writes each byte. */
        .h2d_bytes = machine->memcpy_bytes_per_second / 2,
        .d2h_bytes = machine->memcpy_bytes_per_second / 2,
    };
    if (gpu) {
        out->gemm_flops = machine->gpus[0].gemm_flops_per_second;
        out->device_bytes = machine->gpus[0].memory_bytes_per_second;
        out->h2d_bytes = machine->gpus[0].h2d_bytes_per_second;
        out->d2h_bytes = machine->gpus[0].d2h_bytes_per_second;
        out->both_bytes = machine->gpus[0].both_bytes_per_second;
        out->peer_bytes = machine->gpus[0].peer_bytes_per_second;
    }
    bool both_known = true;
    for (int i = 0; i < machine->drive_count; i++) {
        out->nvme_both_bytes += machine->drives[i].both_bytes_per_second;
        both_known = both_known && machine->drives[i].both_bytes_per_second > 0;
        out->nvme_read_bytes += machine->drives[i].read_bytes_per_second;
        out->nvme_write_bytes += machine->drives[i].write_bytes_per_second;
        if (machine->drives[i].transfer_seconds > out->nvme_transfer_seconds)
            out->nvme_transfer_seconds = machine->drives[i].transfer_seconds;
    }
    if (!both_known)
        out->nvme_both_bytes = 0;
}

/* Bytes of the parts in `parts` (bits), an element. */
static int64_t part_bytes(const struct sw_plan *plan, uint32_t parts)
{
    int64_t bytes = 0;
    for (int part = 0; part < SW_PARTS; part++)
        if ((parts >> part & 1) != 0)
            bytes += sw_dtype_bytes(sw_plan_part_dtype(plan, (enum sw_part)part));
    return bytes;
}

static bool is_activation(const struct sw_op *op)
{
    return op->cargo == SW_CARGO_ACTIVATION;
}

static int64_t message_bytes(const struct sw_plan *plan, const struct sw_op *op)
{
    const struct sw_model *model = plan->request.model;
    switch (op->cargo) {
    case SW_CARGO_ACTIVATION:
        return plan->sizes[op->block].output_bytes;
    case SW_CARGO_ACTIVATION_GRADIENT:
        return ((op->sides & SW_SIDE_TARGET) != 0 ? plan->class_bytes[SW_SLOTS_TARGET] : 0) +
               ((op->sides & SW_SIDE_SOURCE) != 0 ? plan->class_bytes[SW_SLOTS_SOURCE] : 0);
    case SW_CARGO_BIAS: {
        int32_t stage = (op->kind == SW_OP_SEND ? op->rank : op->peer) % plan->stages;
        return plan->stage[stage].layers * model->t5.bias_buckets * model->t5.heads * 4;
    }
    default:
        return op->count * sw_dtype_bytes(plan->request.compute);
    }
}

int64_t sw_plan_op_bytes(const struct sw_plan *plan, const struct sw_op *op)
{
    struct sw_unit_flow flow;
    uint32_t gradient = 1U << SW_PART_GRADIENT, parts;
    switch (op->kind) {
    case SW_OP_BATCH:
        return plan->batch_bytes;
    case SW_OP_READ:
        sw_plan_unit_flow(plan, op->unit, &flow);
        parts = sw_plan_phase_reads_master(plan, op->phase) ? flow.read_parts
                                                            : flow.read_parts & gradient;
        return op->count * part_bytes(plan, parts);
    case SW_OP_WRITE:
        sw_plan_unit_flow(plan, op->unit, &flow);
        return op->count * part_bytes(plan, flow.write_parts);
    case SW_OP_FETCH:
    case SW_OP_UPLOAD:
        if (op->cargo == SW_CARGO_STATES) {
            sw_plan_unit_flow(plan, op->unit, &flow);
            return op->count * part_bytes(plan, flow.up_parts);
        }
        return is_activation(op) ? plan->sizes[op->block].output_bytes
                                 : op->count * sw_dtype_bytes(plan->request.compute);
    case SW_OP_DOWNLOAD:
    case SW_OP_SPILL:
        if (op->cargo == SW_CARGO_STATES) {
            sw_plan_unit_flow(plan, op->unit, &flow);
            return op->count * part_bytes(plan, flow.down_parts);
        }
        return is_activation(op) ? plan->sizes[op->block].output_bytes
                                 : op->count * part_bytes(plan, gradient);
    case SW_OP_SEND:
    case SW_OP_RECV:
        return message_bytes(plan, op);
    case SW_OP_REDUCE:
    case SW_OP_GATHER: { /* what each replica receives of the others */
        int64_t others = plan->replicas - 1;
        int64_t size =
            op->kind == SW_OP_REDUCE ? (op->whole ? 8 : 4) : sw_dtype_bytes(plan->request.compute);
        return op->count * size * others / plan->replicas;
    }
    default:
        return 0;
    }
}

/* Bytes that the host's memory moves in a step, an element: AdamW reads and writes, Adafactor reads
 * its gradient three times. */
static double step_bytes(const struct sw_plan *plan)
{
    const struct sw_optim_settings *optim = plan->request.optim;
    double gradient = (double)sw_dtype_bytes(optim->grads);
    if (optim->name == SW_OPTIM_ADAMW)
        return gradient + 8 + 2 * (double)sw_optim_parallel_state_bytes(optim);
    return 3 * gradient + 8 + (optim->scale_parameter ? 4 : 0);
}

/* What adding a product to fp32 gradients moves beside it: a micro-batch's tokens share one reading
 * and writing of the block's gradients, and a chunk's of the head's. */
static double accumulation_bytes(const struct sw_plan *plan, const struct sw_op *op)
{
    const struct sw_model *model = plan->request.model;
    const struct sw_unit *unit = &model->units[model->blocks[op->block].units[0]];
    int64_t tokens = plan->bounds.rows * plan->bounds.target_length;
    int64_t chunk = plan->bounds.head_chunk_tokens;
    int64_t times = op->kind == SW_OP_HEAD ? (tokens + chunk - 1) / chunk : 1;
    enum sw_block_kind kind = model->blocks[op->block].kind;
    /* embeddings add to the rows of a few words, final norms to one */
    bool adds = kind == SW_BLOCK_ENCODER || kind == SW_BLOCK_DECODER || kind == SW_BLOCK_HEAD;
    return adds && unit->trainable ? 2.0 * sizeof(float) * (double)(unit->elements * times) : 0.0;
}

static double compute_seconds(const struct sw_plan *plan, const struct sw_op *op,
                              const struct sw_plan_rates *rates)
{
    const struct sw_block_sizes *sizes = &plan->sizes[op->block];
    double kept = (double)(sizes->context_bytes + sizes->output_bytes) / rates->device_bytes;
    double forward = sizes->forward_flops / rates->gemm_flops;
    double backward = sizes->backward_flops / rates->gemm_flops +
                      accumulation_bytes(plan, op) / rates->device_bytes;
    switch (op->kind) {
    case SW_OP_FORWARD:
        return forward + 2 * kept;
    case SW_OP_HEAD:
        return plan->request.purpose == SW_FOR_TRAINING ? forward + backward : forward;
    default:
        return backward + 4 * kept + (plan->recompute ? forward + 2 * kept : 0);
    }
}

/* Moves `bytes` at `rate`, which takes all of `resource`. */
static void move_cost(struct sw_op_cost *cost, double bytes, double rate, enum sw_resource resource,
                      const struct sw_plan_rates *rates)
{
    cost->seconds = bytes / rate;
    cost->load[resource] = 1;
    if (resource == SW_RESOURCE_DEVICE)
        return;
    double share = rate / rates->memory_bytes;
    cost->load[SW_RESOURCE_DRAM] = share < 1 ? (float)share : 1;
}

/* Norm partials and steps: where the gradient or the states are, or pass through. */
static void optimizer_cost(const struct sw_plan *plan, const struct sw_op *op,
                           const struct sw_plan_rates *rates, struct sw_op_cost *cost)
{
    const struct sw_unit_homes *homes = &plan->homes[op->unit];
    bool step = op->kind == SW_OP_STEP, cpu = rates->device_is_host;
    enum sw_tier home = step ? homes->states : homes->gradient;
    bool on_device = cpu || op->stepping >= 0 || home == SW_TIER_DEVICE;
    int phases = op->phase < 0 ? 1 : sw_plan_phases(plan);
    double bytes = (double)op->count * (step ? step_bytes(plan) / phases
                                             : (double)sw_dtype_bytes(plan->request.optim->grads));
    double rate = step ? rates->optimizer_bytes : rates->host_bytes;
    move_cost(cost, bytes, on_device && !cpu ? rates->device_bytes : rate,
              on_device ? SW_RESOURCE_DEVICE : SW_RESOURCE_CPU, rates);
}

static bool has_own_links(const struct sw_plan_rates *rates)
{
    return rates->peer_bytes > rates->h2d_bytes;
}

/* Straight into the peer's memory. */
static void send_cost(const struct sw_plan *plan, const struct sw_op *op,
                      const struct sw_plan_rates *rates, struct sw_op_cost *cost)
{
    const int32_t *devices = plan->request.devices;
    double bytes = (double)sw_plan_op_bytes(plan, op);
    if (rates->device_is_host) {
        move_cost(cost, bytes, rates->peer_bytes, SW_RESOURCE_DEVICE, rates);
    } else if (devices == NULL || devices[op->rank] == devices[op->peer]) {
        move_cost(cost, 2 * bytes, rates->device_bytes, SW_RESOURCE_DEVICE, rates);
    } else {
        cost->seconds = bytes / rates->peer_bytes;
        cost->load[SW_RESOURCE_LINK_DOWN] = has_own_links(rates) ? 0 : 1;
    }
}

/* Ranks of a stage whose device is that of its first replica. */
static int32_t sharing(const struct sw_plan *plan, int32_t stage)
{
    int32_t count = 0;
    for (int32_t d = 0; d < plan->replicas; d++)
        count +=
            plan->request.devices == NULL ||
            plan->request.devices[sw_plan_rank(plan, stage, d)] == plan->request.devices[stage];
    return count;
}

/* Over the replicas of a stage, each of which receives what the others have. On one device these
 * are copies in its memory. Else it is counted for the first one's device, the others doing the
 * same at the time: over its link, unless peers have faster ones; through host memory, where they
 * do not reach each other, down and up again for each. */
static void collective_cost(const struct sw_plan *plan, const struct sw_op *op,
                            const struct sw_plan_rates *rates, struct sw_op_cost *cost)
{
    double bytes = (double)sw_plan_op_bytes(plan, op), all = bytes * plan->replicas;
    int32_t together = sharing(plan, op->rank % plan->stages);
    if (rates->device_is_host) {
        move_cost(cost, all, rates->peer_bytes, SW_RESOURCE_DEVICE, rates);
        return;
    }
    if (together == plan->replicas) {
        move_cost(cost, 2 * all, rates->device_bytes, SW_RESOURCE_DEVICE, rates);
        return;
    }
    bool apart = has_own_links(rates) && !plan->request.mailbox;
    double link = bytes * together / (plan->request.mailbox ? rates->h2d_bytes : rates->peer_bytes);
    double memory = plan->request.mailbox ? 2 * all / rates->host_bytes : 0;
    cost->seconds = link > memory ? link : memory;
    if (cost->seconds <= 0)
        return;
    cost->load[SW_RESOURCE_LINK_UP] = apart ? 0 : (float)(link / cost->seconds);
    cost->load[SW_RESOURCE_DRAM] = (float)(memory / cost->seconds);
}

/* Over a device's links to the host, one way or the other; on the CPU back end all are copies in
 * memory. */
static void link_cost(const struct sw_plan *plan, const struct sw_op *op,
                      const struct sw_plan_rates *rates, struct sw_op_cost *cost)
{
    bool down = op->kind == SW_OP_DOWNLOAD || op->kind == SW_OP_SEND;
    double rate = down ? rates->d2h_bytes : rates->h2d_bytes;
    enum sw_resource link = down ? SW_RESOURCE_LINK_DOWN : SW_RESOURCE_LINK_UP;
    move_cost(cost, (double)sw_plan_op_bytes(plan, op), rate,
              rates->device_is_host ? SW_RESOURCE_DEVICE : link, rates);
    if (!rates->device_is_host)
        cost->load[SW_RESOURCE_LINK] = (float)(rate / rates->both_bytes);
}

static void drive_cost(const struct sw_plan_costing *costing, const struct sw_op *op,
                       struct sw_op_cost *cost)
{
    const struct sw_plan_rates *rates = &costing->rates;
    bool read = op->kind == SW_OP_READ || op->kind == SW_OP_FETCH;
    move_cost(cost, (double)sw_plan_op_bytes(costing->plan, op),
              read ? rates->nvme_read_bytes : rates->nvme_write_bytes, SW_RESOURCE_DRIVES, rates);
    cost->writes = !read;
    if (!costing->overlap && cost->seconds > 0)
        cost->seconds += rates->nvme_transfer_seconds;
}

void sw_plan_op_cost(const struct sw_op *op, void *context, struct sw_op_cost *cost)
{
    const struct sw_plan_costing *costing = context;
    const struct sw_plan *plan = costing->plan;
    const struct sw_plan_rates *rates = &costing->rates;
    cost->device = plan->request.devices != NULL ? plan->request.devices[op->rank] : 0;
    switch (op->kind) {
    case SW_OP_FORWARD:
    case SW_OP_HEAD:
    case SW_OP_BACKWARD:
        cost->seconds = compute_seconds(plan, op, rates);
        cost->load[SW_RESOURCE_DEVICE] = 1;
        break;
    case SW_OP_PARTIALS:
    case SW_OP_STEP:
        optimizer_cost(plan, op, rates, cost);
        break;
    case SW_OP_READ:
    case SW_OP_FETCH:
    case SW_OP_WRITE:
    case SW_OP_SPILL:
        drive_cost(costing, op, cost);
        break;
    case SW_OP_BATCH:
    case SW_OP_UPLOAD:
    case SW_OP_DOWNLOAD:
    case SW_OP_RECV:
        link_cost(plan, op, rates, cost);
        break;
    case SW_OP_SEND:
        if (plan->mailboxes > 0)
            link_cost(plan, op, rates, cost);
        else
            send_cost(plan, op, rates, cost);
        break;
    case SW_OP_REDUCE:
    case SW_OP_GATHER:
        collective_cost(plan, op, rates, cost);
        break;
    default:
        break;
    }
}

double sw_plan_drives_mixing(const struct sw_plan_rates *rates)
{
    double read = rates->nvme_read_bytes, write = rates->nvme_write_bytes;
    if (!(rates->nvme_both_bytes > 0 && read > 0 && write > 0))
        return 0;
    /* as many bytes of each, one after the other: their shares of the time, and the rate */
    double reads = write / (read + write), writes = read / (read + write);
    double turns = 2 * read * write / (read + write);
    double mixing = (turns / rates->nvme_both_bytes - 1) / (4 * reads * writes);
    return mixing > -0.5 ? mixing : -0.5; /* both as fast as alone */
}

sw_code sw_plan_simulate(const struct sw_plan *plan, bool overlap, struct sw_simulation *out,
                         struct sw_err *err)
{
    struct sw_plan_costing costing = {plan, sw_plan_rates_complete(&plan->request.rates), overlap};
    out->drives_mixing = sw_plan_drives_mixing(&costing.rates);
    const struct sw_program *program = plan->step         ? plan->step
                                       : plan->evaluation ? plan->evaluation
                                                          : plan->decode;
    return sw_program_simulate(program, sw_plan_op_cost, &costing, overlap, out, err);
}

sw_code sw_plan_predict(const struct sw_plan *plan, struct sw_simulation *out, struct sw_err *err)
{
    return sw_plan_simulate(plan, plan->request.overlap, out, err);
}

sw_code sw_plan_price(struct sw_plan *plan, const struct sw_plan_rates *rates, struct sw_err *err)
{
    plan->request.rates = *rates;
    sw_code code = sw_plan_predict(plan, &plan->predicted, err);
    plan->has_prediction = code == SW_OK;
    return code;
}

sw_code sw_plan_price_schedules(struct sw_plan *plan, const struct sw_plan_request *request,
                                struct sw_err *err)
{
    sw_code code = SW_OK;
    for (int i = SW_SCHEDULE_LAYERED; i <= SW_SCHEDULE_GPIPE && code == SW_OK; i++) {
        struct sw_plan_request other = *request;
        struct sw_plan *made = NULL;
        if (plan->schedule_seconds[i] <= 0)
            continue;
        other.schedule = (enum sw_schedule)i;
        if (other.schedule != plan->schedule)
            code = sw_plan_make(&made, &other, err);
        if (code == SW_OK && made != NULL)
            code = sw_plan_price(made, &plan->request.rates, err);
        if (code == SW_OK)
            plan->schedule_seconds[i] = (made != NULL ? made : plan)->predicted.makespan_seconds;
        sw_plan_free(made);
    }
    return code;
}

void sw_plan_lane_bytes(const struct sw_plan *plan, const struct sw_program *program,
                        int64_t out[SW_LANES])
{
    for (int lane = 0; lane < SW_LANES; lane++)
        out[lane] = 0;
    for (int64_t i = 0; i < program->op_count; i++)
        out[program->ops[i].lane] += sw_plan_op_bytes(plan, &program->ops[i]);
}

void sw_plan_queue_bytes(const struct sw_plan *plan, const struct sw_program *program, int64_t *out)
{
    for (int32_t queue = 0; queue < program->queue_count; queue++)
        out[queue] = 0;
    for (int64_t i = 0; i < program->op_count; i++)
        out[sw_op_queue(&program->ops[i])] += sw_plan_op_bytes(plan, &program->ops[i]);
}
