/* Choosing what the settings leave open: micro-batch, recomputation, homes, slots. Candidates are
 * measured against the limits; of those that fit, the one with the shortest predicted step is
 * taken. Everything on the device is taken without asking further. */
#include "plan/search.h"

#include "plan/agenda.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum {
    /* Tokens of a micro-batch beyond which larger ones are no faster. */
    MICRO_BATCH_TOKENS = 8192,
    PARTS = 16, /* the share of units to stream is found to one of them */
    DEFAULT_SLOTS = 3,
};

/* A schedule is taken for another one, which moves or keeps less, only when it is that much faster,
 * and so are ranges for whole uploads. */
static const double CLEARLY = 0.99;

enum kind { WEIGHTS, STATES, GRADIENTS, KINDS };

/* Everything that is chosen. Of each kind, the first units (in order of use) have their home on the
 * device, the next ones on the host, the rest on drives. */
struct genes {
    enum sw_schedule schedule;
    int64_t rows;
    bool recompute;
    enum sw_tier activations;
    int64_t activation_slots; /* where those are not at home on the device */
    int64_t slots;
    int64_t chunk_bytes;
    int64_t device[KINDS], host[KINDS];
    int64_t streamed; /* in PARTS: units whose states are not on the device, evenly among those */
    bool streamed_stays; /* their gradients have their home where they are stepped */
    bool ranges;         /* of weights off the device are uploaded, and gathered */
};

struct search {
    struct sw_plan *plan;
    int32_t *order; /* units but the common one: a unit of each stage in turn, in order of use */
    int64_t count;
    int64_t counted_rows; /* what the plan's agendas and slots were made for */
    enum sw_schedule counted_schedule;
    enum sw_tier counted_activations;
    bool counted_recompute;
    enum sw_tier wanted[KINDS], wanted_activations;
    struct genes *priced; /* owned: so that none is priced twice */
    int64_t priced_count, priced_capacity;
    struct genes best;
    double best_seconds;
    bool found;
    bool least;  /* look only whether anything fits, by what needs least */
    bool failed; /* no memory */
};

/* ---- from genes to a plan ---- */

/* Units in turn by stage, so that what is nearer is spread over the stages. */
static void order_units(struct search *search)
{
    const struct sw_plan *plan = search->plan;
    const struct sw_model *model = plan->request.model;
    int64_t count = 0;
    for (int64_t turn = 0; count < search->count; turn++)
        for (int32_t stage = 0; stage < plan->stages; stage++) {
            int64_t nth = 0;
            for (int64_t i = 0; i < model->block_count; i++) {
                int32_t unit = model->blocks[i].units[0];
                bool again = unit < 0 || unit == model->common_unit;
                for (int64_t k = 0; k < i && !again; k++)
                    again = model->blocks[k].units[0] == unit;
                if (again || plan->unit_stage[unit] != stage || nth++ != turn)
                    continue;
                search->order[count++] = unit;
            }
        }
}

/* Stages, agendas and fixed places, when something that they depend on is another. */
static void set_agendas(struct search *search, const struct genes *genes)
{
    struct sw_plan *plan = search->plan;
    bool rows = genes->rows != search->counted_rows;
    bool schedule = genes->schedule != search->counted_schedule;
    bool recompute = genes->recompute != search->counted_recompute;
    struct sw_err err;
    sw_err_init(&err);
    plan->schedule = genes->schedule;
    if (schedule || rows || recompute) {
        search->failed = search->failed || sw_plan_assign_stages(plan, &err) != SW_OK ||
                         sw_plan_make_agendas(plan, &err) != SW_OK;
        order_units(search);
    }
    if (search->failed ||
        (!schedule && !rows && !recompute && genes->activations == search->counted_activations))
        return;
    search->failed = !sw_plan_count_slots(plan);
    search->counted_rows = genes->rows;
    search->counted_schedule = genes->schedule;
    search->counted_recompute = genes->recompute;
    search->counted_activations = genes->activations;
}

static enum sw_tier tier_of(const struct genes *genes, enum kind kind, int64_t position)
{
    if (position < genes->device[kind])
        return SW_TIER_DEVICE;
    return position < genes->device[kind] + genes->host[kind] ? SW_TIER_HOST : SW_TIER_NVME;
}

/* Evenly among the units whose states are elsewhere, in the order of use: what the host steps and
 * what passes through devices then goes on side by side. */
static bool is_streamed(const struct search *search, const struct genes *genes, int64_t position)
{
    int64_t all = search->count - genes->device[STATES], at = position - genes->device[STATES];
    int64_t streamed = (all * genes->streamed + PARTS - 1) / PARTS;
    return at >= 0 && search->plan->request.model->units[search->order[position]].trainable &&
           (at + 1) * streamed / all > at * streamed / all;
}

static void set_homes(const struct search *search, const struct genes *genes)
{
    struct sw_plan *plan = search->plan;
    for (int64_t i = 0; i < search->count; i++) {
        bool streamed = is_streamed(search, genes, i);
        plan->homes[search->order[i]] = (struct sw_unit_homes){
            .weights = tier_of(genes, WEIGHTS, i),
            .states = tier_of(genes, STATES, i),
            .gradient =
                streamed && genes->streamed_stays ? SW_TIER_DEVICE : tier_of(genes, GRADIENTS, i),
            .streamed = streamed,
        };
    }
    /* Small, and used all over. */
    plan->homes[plan->request.model->common_unit] = (struct sw_unit_homes){
        .weights = SW_TIER_DEVICE,
        .states = tier_of(genes, STATES, 0),
        .gradient = plan->request.device_is_remote && tier_of(genes, STATES, 0) != SW_TIER_DEVICE
                        ? SW_TIER_HOST
                        : SW_TIER_DEVICE,
    };
}

static enum sw_tier farthest(const struct search *search, const struct genes *genes, enum kind kind)
{
    return search->count > 0 ? tier_of(genes, kind, search->count - 1) : SW_TIER_DEVICE;
}

/* Make the plan what the genes say, and add up its bytes. */
static void apply(struct search *search, const struct genes *genes)
{
    struct sw_plan *plan = search->plan;
    sw_plan_set_bounds(plan, genes->rows);
    plan->recompute = genes->recompute;
    plan->uploads_ranges = genes->ranges;
    plan->activations = genes->activations;
    plan->activation_slots = genes->activation_slots;
    set_agendas(search, genes);
    plan->request.chunk_bytes = genes->chunk_bytes;
    set_homes(search, genes);
    plan->params = farthest(search, genes, WEIGHTS);
    plan->optimizer = farthest(search, genes, STATES);
    plan->grads = farthest(search, genes, GRADIENTS);
    sw_plan_set_pools(plan, genes->slots);
    sw_plan_make_budget(plan);
}

static bool fits(struct search *search, const struct genes *genes)
{
    apply(search, genes);
    return !search->failed && sw_plan_fits(search->plan);
}

static bool fits_memory(struct search *search, const struct genes *genes)
{
    apply(search, genes);
    return !search->failed && sw_plan_fits_memory(search->plan);
}

/* ---- candidates ---- */

static bool is_open(const struct search *search, enum kind kind)
{
    return search->wanted[kind] == SW_TIER_AUTO;
}

/* The farthest home that a kind may have. */
static enum sw_tier far_tier(const struct search *search, enum sw_tier wanted)
{
    if (wanted != SW_TIER_AUTO)
        return wanted;
    return search->plan->request.nvme_bytes > 0 ? SW_TIER_NVME : SW_TIER_HOST;
}

static void put_all(const struct search *search, struct genes *genes, enum kind kind,
                    enum sw_tier tier)
{
    genes->device[kind] = tier == SW_TIER_DEVICE ? search->count : 0;
    genes->host[kind] = tier == SW_TIER_HOST ? search->count : 0;
}

/* As many units as fit, of the kinds in `kinds` (bits) that are open, nearer: on the device, or on
 * the host. */
static void promote(struct search *search, struct genes *genes, unsigned kinds, bool device)
{
    const struct genes before = *genes;
    int64_t low = 0, high = search->count;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        struct genes tried = before;
        for (int kind = 0; kind < KINDS; kind++) {
            if ((kinds >> kind & 1) == 0 || !is_open(search, (enum kind)kind))
                continue;
            int64_t *count = device ? &tried.device[kind] : &tried.host[kind];
            int64_t limit = device ? search->count : search->count - tried.device[kind];
            int64_t wanted = middle < limit ? middle : limit;
            if (*count < wanted)
                *count = wanted;
            if (device && tried.host[kind] > search->count - tried.device[kind])
                tried.host[kind] = search->count - tried.device[kind];
        }
        if (fits_memory(search, &tried)) {
            low = middle;
            *genes = tried;
        } else {
            high = middle - 1;
        }
    }
}

static bool training(const struct search *search)
{
    return search->plan->request.purpose == SW_FOR_TRAINING;
}

/* Whether all three kinds of a unit may be on the device: it is stepped there only then. */
static bool may_be_resident(const struct search *search)
{
    for (int kind = 0; kind < KINDS; kind++)
        if (!is_open(search, (enum kind)kind) && search->wanted[kind] != SW_TIER_DEVICE)
            return false;
    return !training(search) || sw_plan_may_step_on_device(&search->plan->request);
}

static bool are_same(const struct genes *a, const struct genes *b)
{
    return a->schedule == b->schedule && a->rows == b->rows && a->recompute == b->recompute &&
           a->activations == b->activations && a->activation_slots == b->activation_slots &&
           a->slots == b->slots && a->chunk_bytes == b->chunk_bytes && a->streamed == b->streamed &&
           a->streamed_stays == b->streamed_stays && a->ranges == b->ranges &&
           memcmp(a->device, b->device, sizeof a->device) == 0 &&
           memcmp(a->host, b->host, sizeof a->host) == 0;
}

/* Slots that a pool of the plan at hand has; more of them would be of no use. */
static int64_t slots_in_use(const struct sw_plan *plan)
{
    int64_t most = 0;
    for (int32_t s = 0; s < plan->stages; s++)
        for (int pool = 0; pool < SW_POOL_KINDS; pool++) {
            int64_t weights = plan->stage[s].weight_pools[pool].slots;
            int64_t gradients = plan->stage[s].gradient_pools[pool].slots;
            most = weights > most ? weights : most;
            most = gradients > most ? gradients : most;
        }
    return most;
}

/* Notes that the candidate that the plan now is will be priced; false: one that is as good was. */
static bool is_new(struct search *search, const struct genes *genes)
{
    struct genes used = *genes;
    used.slots = slots_in_use(search->plan);
    for (int64_t i = 0; i < search->priced_count; i++)
        if (are_same(&search->priced[i], &used))
            return false;
    if (sw_array_reserve((void **)&search->priced, &search->priced_capacity, search->priced_count,
                         sizeof *search->priced))
        search->priced[search->priced_count++] = used;
    else
        search->failed = true;
    return true;
}

/* Price a candidate that fits, and keep the best: one that takes less than `factor` of the best
 * before. */
static sw_code price(struct search *search, const struct genes *genes, double factor,
                     struct sw_err *err)
{
    struct sw_plan *plan = search->plan;
    struct sw_simulation simulation = {.give_up_seconds = search->found ? search->best_seconds : 0};
    if ((search->least && search->found) || !fits(search, genes) || !is_new(search, genes))
        return SW_OK;
    if (search->least) {
        search->found = true;
        search->best = *genes;
        return SW_OK;
    }
    sw_code code = SW_OK;
    if (training(search))
        code = sw_plan_build_step(plan, err);
    else
        code = sw_plan_build_programs(plan, err);
    if (code == SW_OK)
        code = sw_plan_predict(plan, &simulation, err);
    sw_plan_drop_programs(plan);
    if (code != SW_OK)
        return code;
    if (search->found && simulation.makespan_seconds != search->best_seconds)
        plan->chosen_by_rates = true;
    if (!search->found || simulation.makespan_seconds < factor * search->best_seconds) {
        search->found = true;
        search->best_seconds = simulation.makespan_seconds;
        search->best = *genes;
    }
    return SW_OK;
}

static bool uploads(const struct sw_plan *plan)
{
    bool any = false;
    for (int64_t i = 0; i < plan->request.model->unit_count; i++)
        any = any || plan->homes[i].weights != SW_TIER_DEVICE;
    return any && plan->replicas > 1;
}

/* The same for one that weights pass to several replicas, by the way that was faster so far; where
 * it is the best, by the other way, too. */
static sw_code consider(struct search *search, const struct genes *genes, struct sw_err *err)
{
    enum sw_uploads wanted = search->plan->request.uploads;
    struct genes tried = *genes;
    tried.ranges = wanted == SW_UPLOADS_AUTO ? search->best.ranges : wanted == SW_UPLOADS_RANGES;
    sw_code code = price(search, &tried, 1, err);
    if (code != SW_OK || wanted != SW_UPLOADS_AUTO || !are_same(&search->best, &tried) ||
        !uploads(search->plan))
        return code;
    tried.ranges = !tried.ranges;
    return price(search, &tried, tried.ranges ? CLEARLY : 1, err);
}

/* From a candidate with everything as far as may be, nearer what fits. */
static sw_code consider_fills(struct search *search, const struct genes *far, struct sw_err *err)
{
    const unsigned all = 1U << WEIGHTS | 1U << STATES | 1U << GRADIENTS;
    static const enum kind orders[2][KINDS] = {{WEIGHTS, STATES, GRADIENTS},
                                               {WEIGHTS, GRADIENTS, STATES}};
    if (!fits_memory(search, far)) /* drives are relieved by what comes nearer */
        return SW_OK;
    sw_code code = SW_OK;
    for (int resident_first = 0; resident_first < 2 && code == SW_OK; resident_first++)
        for (int order = 0; order < 2 && code == SW_OK; order++) {
            struct genes genes = *far;
            if (resident_first && !may_be_resident(search))
                break;
            if (resident_first)
                promote(search, &genes, all, true);
            promote(search, &genes, 1U << WEIGHTS, true);
            for (int i = 0; i < KINDS; i++)
                promote(search, &genes, 1U << orders[order][i], false);
            code = consider(search, &genes, err);
        }
    return code;
}

/* Units to stream before it is known what that brings. */
static int64_t streamed_of(const struct search *search)
{
    return training(search) && search->plan->request.where == SW_STEP_STREAM ? PARTS : 0;
}

static int64_t slots_of(const struct search *search, int choice)
{
    static const int64_t choices[] = {DEFAULT_SLOTS, 2, 4, 8, 1};
    int64_t depth = search->plan->request.prefetch_depth;
    if (depth > 0)
        return choice == 0 ? depth + 1 : 0;
    return choice < (int)(sizeof choices / sizeof *choices) ? choices[choice] : 0;
}

/* Slots for spilled activations: with those of two layers and the encoder's output nothing moves
 * twice in a pass; less is possible. */
static int64_t activation_slots_of(const struct search *search, const struct genes *genes,
                                   int choice)
{
    int64_t m = sw_plan_microbatches(search->plan, genes->rows);
    return choice == 0 ? 3 * m + 2 : choice == 1 ? 2 * m + 2 : choice == 2 ? 4 : 0;
}

/* All candidates of one micro-batch, recomputation and home of activations. */
static sw_code consider_slots(struct search *search, struct genes *genes, struct sw_err *err)
{
    sw_code code = SW_OK;
    for (int choice = 0; slots_of(search, choice) > 0 && code == SW_OK; choice++) {
        /* One slot, without reading ahead, only where nothing else fits. */
        if (slots_of(search, choice) == 1 && search->found)
            break;
        genes->slots = slots_of(search, choice);
        if (genes->activations == SW_TIER_DEVICE) {
            code = consider_fills(search, genes, err);
            continue;
        }
        bool had = false;
        for (int k = 0; activation_slots_of(search, genes, k) > 0 && code == SW_OK && !had; k++) {
            genes->activation_slots = activation_slots_of(search, genes, k);
            had = fits_memory(search, genes);
            code = consider_fills(search, genes, err);
        }
    }
    return code;
}

static bool wants_recompute(const struct search *search, bool recompute)
{
    enum sw_recompute wanted = search->plan->request.recompute;
    if (search->least && wanted == SW_RECOMPUTE_AUTO)
        wanted = SW_RECOMPUTE_ON;
    if (!training(search))
        return !recompute;
    return wanted == SW_RECOMPUTE_AUTO || (wanted == SW_RECOMPUTE_ON) == recompute;
}

static bool wants_activations(const struct search *search, enum sw_tier tier)
{
    if (!training(search) && search->wanted_activations == SW_TIER_AUTO)
        return tier == SW_TIER_DEVICE;
    if (search->wanted_activations != SW_TIER_AUTO)
        return tier == search->wanted_activations;
    return tier != SW_TIER_NVME || search->plan->request.nvme_bytes > 0;
}

/* Everything on the device: nothing is faster. Between schedules it must be priced all the same,
 * and where ZeRO has slots, between numbers of them. */
static sw_code take_resident(struct search *search, struct genes genes, bool *taken,
                             struct sw_err *err)
{
    bool slotted = sw_plan_cuts_gradients(search->plan);
    sw_code code = SW_OK;
    genes.activations = SW_TIER_DEVICE;
    for (int kind = 0; kind < KINDS; kind++)
        put_all(search, &genes, (enum kind)kind, SW_TIER_DEVICE);
    *taken = false;
    if (!may_be_resident(search) || !wants_activations(search, SW_TIER_DEVICE))
        return SW_OK;
    for (int choice = 0; slots_of(search, choice) > 0 && code == SW_OK; choice++) {
        genes.slots = slotted ? slots_of(search, choice) : 1;
        if (fits(search, &genes)) {
            *taken = true;
            if (search->plan->stages > 1 || slotted) {
                code = consider(search, &genes, err);
            } else {
                search->best = genes;
                search->found = true;
            }
        }
        if (!slotted)
            break;
    }
    return code;
}

static sw_code consider_rows(struct search *search, enum sw_schedule schedule, int64_t rows,
                             int64_t chunk_bytes, struct sw_err *err)
{
    struct genes genes = {.schedule = schedule,
                          .rows = rows,
                          .chunk_bytes = chunk_bytes,
                          .streamed = streamed_of(search)};
    sw_code code = SW_OK;
    for (int recompute = 0; recompute < 2 && code == SW_OK; recompute++) {
        if (!wants_recompute(search, recompute == 1))
            continue;
        genes.recompute = recompute == 1;
        bool taken = false;
        if (!search->found)
            code = take_resident(search, genes, &taken, err);
        if (taken || code != SW_OK)
            return code;
        for (int tier = SW_TIER_DEVICE; tier < SW_TIERS && code == SW_OK; tier++) {
            if (!wants_activations(search, (enum sw_tier)tier))
                continue;
            genes.activations = (enum sw_tier)tier;
            for (int kind = 0; kind < KINDS; kind++)
                put_all(search, &genes, (enum kind)kind, far_tier(search, search->wanted[kind]));
            code = consider_slots(search, &genes, err);
        }
    }
    return code;
}

/* The largest micro-batch of at most MICRO_BATCH_TOKENS tokens, evened out over the step; with
 * several stages, two micro-batches a stage at least, if there are rows for that. */
static int64_t choose_rows(const struct sw_plan *plan)
{
    const struct sw_plan_request *request = &plan->request;
    if (request->purpose == SW_FOR_GENERATION)
        return request->generation_rows;
    if (request->micro_batch > 0)
        return request->micro_batch;
    int64_t longest = request->source_length > request->target_length ? request->source_length
                                                                      : request->target_length;
    int64_t all = sw_plan_replica_rows(plan), rows = MICRO_BATCH_TOKENS / longest;
    if (plan->stages > 1 && rows > all / (2 * plan->stages))
        rows = all / (2 * plan->stages);
    if (rows > all)
        rows = all;
    if (rows < 1)
        rows = 1;
    int64_t count = (all + rows - 1) / rows;
    return (all + count - 1) / count;
}

static bool rows_are_open(const struct sw_plan_request *request)
{
    return request->purpose != SW_FOR_GENERATION && request->micro_batch == 0;
}

static bool moves(enum sw_tier home)
{
    return home == SW_TIER_HOST || home == SW_TIER_NVME;
}

/* Around a share of units to stream, ever closer. */
static sw_code refine_share(struct search *search, struct genes genes, struct sw_err *err)
{
    sw_code code = SW_OK;
    int64_t from = genes.streamed;
    for (int64_t step = PARTS / 2; step > 0 && code == SW_OK; step /= 2) {
        for (int way = -1; way <= 1 && code == SW_OK; way += 2) {
            genes.streamed = from + way * step;
            if (genes.streamed > 0 && genes.streamed <= PARTS)
                code = consider_fills(search, &genes, err);
        }
        if (search->best.streamed_stays == genes.streamed_stays && search->best.streamed > 0)
            from = search->best.streamed;
    }
    return code;
}

/* The best so far with some units, or all, streamed, and their gradients where they were or on the
 * device. Not on the host itself, which a device beside it would have to relieve. */
static sw_code consider_streams(struct search *search, struct sw_err *err)
{
    const struct sw_plan_request *request = &search->plan->request;
    struct genes genes = search->best, before = search->best;
    double before_seconds = search->best_seconds;
    bool chosen = request->where == SW_STEP_STREAM, layered = genes.schedule == SW_SCHEDULE_LAYERED;
    bool open = request->where == SW_STEP_AUTO && request->device_is_remote;
    sw_code code = SW_OK;
    if (!training(search) || request->optim->name != SW_OPTIM_ADAMW || (!open && !chosen))
        return SW_OK;
    for (int kind = 0; kind < KINDS; kind++)
        put_all(search, &genes, (enum kind)kind, far_tier(search, search->wanted[kind]));
    for (int stays = 0; stays < 2 && code == SW_OK; stays++) {
        genes.streamed_stays = stays == 1;
        if (genes.streamed_stays && (!is_open(search, GRADIENTS) || !layered))
            continue;
        genes.streamed = chosen ? PARTS : PARTS / 2;
        code = consider_fills(search, &genes, err);
        if (code == SW_OK && !chosen)
            code = refine_share(search, genes, err);
    }
    if (search->best_seconds >= CLEARLY * before_seconds) {
        search->best = before;
        search->best_seconds = before_seconds;
    }
    return code;
}

static sw_code look_at(struct search *search, enum sw_schedule schedule, int64_t chunk_bytes,
                       struct sw_err *err)
{
    sw_code code = SW_OK;
    bool smallest = search->least && rows_are_open(&search->plan->request);
    for (int64_t rows = smallest ? 1 : choose_rows(search->plan); code == SW_OK && !search->found;
         rows = (rows + 1) / 2) {
        code = consider_rows(search, schedule, rows, chunk_bytes, err);
        if (rows == 1 || !rows_are_open(&search->plan->request))
            break;
    }
    if (code == SW_OK && search->found)
        code = consider_streams(search, err);
    return code;
}

/* With one schedule after the other; only `layered` moves weights and gradients, which the others
 * would move once a micro-batch. */
static sw_code look(struct search *search, int64_t chunk_bytes, struct sw_err *err)
{
    static const enum sw_schedule all[] = {SW_SCHEDULE_LAYERED, SW_SCHEDULE_1F1B,
                                           SW_SCHEDULE_GPIPE};
    const struct sw_plan *plan = search->plan;
    enum sw_tier weights = search->wanted[WEIGHTS], gradients = search->wanted[GRADIENTS];
    struct search best = *search;
    sw_code code = SW_OK;
    for (int i = 0; i < 3 && code == SW_OK; i++) {
        bool layered = all[i] == SW_SCHEDULE_LAYERED;
        bool wanted = plan->request.schedule == SW_SCHEDULE_AUTO ? layered || plan->stages > 1
                                                                 : plan->request.schedule == all[i];
        if (!wanted || (!layered && (moves(weights) || moves(gradients))))
            continue;
        search->found = false;
        search->wanted[WEIGHTS] = layered ? weights : SW_TIER_DEVICE;
        search->wanted[GRADIENTS] = layered ? gradients : SW_TIER_DEVICE;
        code = look_at(search, all[i], chunk_bytes, err);
        if (search->found && best.found && search->best_seconds != best.best_seconds)
            search->plan->chosen_by_rates = true;
        if (search->found && (!best.found || search->best_seconds < CLEARLY * best.best_seconds)) {
            best.best = search->best;
            best.best_seconds = search->best_seconds;
            best.found = true;
        }
        if (search->found)
            search->plan->schedule_seconds[all[i]] = search->best_seconds;
    }
    search->wanted[WEIGHTS] = weights;
    search->wanted[GRADIENTS] = gradients;
    search->best = best.best;
    search->best_seconds = best.best_seconds;
    search->found = best.found;
    return code;
}

/* The least that any choice needs. */
static void apply_least(struct search *search, int64_t chunk_bytes, bool layered)
{
    struct sw_plan *plan = search->plan;
    const struct sw_plan_request request = plan->request;
    struct genes genes = {.schedule = layered ? SW_SCHEDULE_LAYERED : request.schedule,
                          .rows = rows_are_open(&request) ? 1 : choose_rows(plan),
                          .recompute = request.recompute != SW_RECOMPUTE_OFF && training(search),
                          .activations = far_tier(search, search->wanted_activations),
                          .activation_slots = 4,
                          .slots = request.prefetch_depth > 0 ? request.prefetch_depth + 1 : 1,
                          .chunk_bytes = chunk_bytes,
                          .streamed = streamed_of(search)};
    if (!training(search) && search->wanted_activations == SW_TIER_AUTO)
        genes.activations = SW_TIER_DEVICE;
    for (int kind = 0; kind < KINDS; kind++)
        put_all(search, &genes, (enum kind)kind,
                layered || kind == STATES ? far_tier(search, search->wanted[kind])
                                          : SW_TIER_DEVICE);
    if (fits_memory(search, &genes)) { /* then it is the drives: the least that they must take */
        promote(search, &genes, 1U << WEIGHTS | 1U << STATES | 1U << GRADIENTS,
                may_be_resident(search));
        for (int kind = 0; kind < KINDS; kind++)
            promote(search, &genes, 1U << kind, false);
    }
    apply(search, &genes);
}

static sw_code open_search(struct search *search, struct sw_plan *plan, struct sw_err *err)
{
    const struct sw_plan_request *request = &plan->request;
    *search = (struct search){.plan = plan,
                              .count = request->model->unit_count - 1,
                              .wanted = {request->params, request->optimizer, request->grads},
                              .wanted_activations = request->activations};
    if (request->purpose != SW_FOR_TRAINING)
        search->wanted[STATES] = search->wanted[GRADIENTS] = SW_TIER_DEVICE;
    else if (request->optimizer == SW_TIER_DEVICE)
        search->wanted[WEIGHTS] = search->wanted[GRADIENTS] = SW_TIER_DEVICE;
    search->order = sw_calloc(request->model->unit_count, sizeof *search->order);
    return search->order != NULL ? SW_OK : SW_FAIL(err, SW_E_MEMORY, "no memory for a plan");
}

static sw_code close_search(struct search *search, sw_code code, struct sw_err *err)
{
    if (code == SW_OK && search->failed)
        code = SW_FAIL(err, SW_E_MEMORY, "no memory for a plan");
    free(search->order);
    free(search->priced);
    return code;
}

sw_code sw_plan_find_fit(struct sw_plan *plan, bool *found, struct sw_err *err)
{
    struct search search;
    sw_code code = open_search(&search, plan, err);
    search.least = true;
    if (code == SW_OK)
        code = look(&search, plan->request.chunk_bytes, err);
    *found = search.found;
    if (code == SW_OK && search.found)
        apply(&search, &search.best);
    return close_search(&search, code, err);
}

sw_code sw_plan_place(struct sw_plan *plan, struct sw_err *err)
{
    static const int64_t chunks[] = {4 << 20, 512 << 10, 64 << 10};
    const int64_t given_bytes = plan->request.chunk_bytes;
    enum sw_schedule schedule = plan->request.schedule;
    bool layered = schedule == SW_SCHEDULE_AUTO || schedule == SW_SCHEDULE_LAYERED;
    struct search search;
    int64_t chunk_bytes = given_bytes;
    sw_code code = sw_plan_check_homes(plan, err);
    if (code == SW_OK) /* refused here, while its reason is at hand */
        code = sw_plan_assign_stages(plan, err);
    if (code != SW_OK)
        return code;
    code = open_search(&search, plan, err);
    for (int i = 0; i < (given_bytes > 0 ? 1 : 3) && code == SW_OK && !search.found; i++) {
        chunk_bytes = given_bytes > 0 ? given_bytes : chunks[i];
        code = look(&search, chunk_bytes, err);
    }
    if (code == SW_OK && search.found)
        apply(&search, &search.best);
    else if (code == SW_OK)
        apply_least(&search, chunk_bytes, layered);
    code = close_search(&search, code, err);
    return code == SW_OK && !search.found ? sw_plan_refuse(plan, layered, err) : code;
}
