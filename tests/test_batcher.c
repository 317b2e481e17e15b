#include "support.h"

#include "data/batcher.h"
#include "data/rows.h"
#include "data/tokenize.h"

/* A tokenizer of 12 pieces that the test trains itself, and a file of rows whose source is "a"
 * times the row's number + 1: so a row is known by its length. */
struct world {
    char *directory, *model, *path;
    struct sw_tokenizer *tokenizer;
    struct sw_pool *pool;
    struct sw_dataset *dataset;
};

enum { ROWS = 10 };

static bool next_text(void *context, const char **text, int64_t *bytes)
{
    static const char *const texts[] = {"a b c", "a a a", "b c a", "x y z"};
    int *at = context;
    if (*at == 200)
        return false;
    *text = texts[(*at)++ % 4];
    *bytes = 5;
    return true;
}

static int setup(void **state)
{
    struct sw_err err = {0};
    struct world *world = calloc(1, sizeof *world);
    int at = 0;
    assert_non_null(world);
    world->directory = sw_test_scratch();
    world->model = sw_path_join(world->directory, "spiece.model");
    world->path = sw_path_join(world->directory, "rows.jsonl");
    struct sw_tokenizer_training training = {
        .next = next_text, .context = &at, .pieces = 12, .character_coverage = 1};
    assert_ok(sw_tokenizer_train(&training, world->model, &err), &err);
    assert_ok(sw_tokenizer_open(world->directory, 0, &world->tokenizer, &err), &err);
    assert_ok(sw_pool_open(&world->pool, 2, &err), &err);
    FILE *file = fopen(world->path, "w");
    assert_non_null(file);
    for (int row = 0; row < ROWS; row++) {
        fputs("{\"source\": \"", file);
        for (int i = 0; i <= row; i++)
            fputs("a ", file);
        fprintf(file, "\", \"target\": \"%s\"}\n", row % 3 == 0 ? "" : "a a");
    }
    fclose(file);
    struct sw_dataset_options options = {0};
    assert_ok(sw_dataset_load(world->path, world->tokenizer, world->pool, &options, &world->dataset,
                              &err),
              &err);
    *state = world;
    return 0;
}

static int teardown(void **state)
{
    struct world *world = *state;
    sw_dataset_free(world->dataset);
    sw_pool_close(world->pool);
    sw_tokenizer_close(world->tokenizer);
    free(world->model);
    free(world->path);
    sw_test_scratch_remove(world->directory);
    free(world);
    return 0;
}

/* Number in the file, by the length: "a " n+1 times and EOS. */
static int64_t number_of(const struct sw_row *row)
{
    return row->source_length - 2;
}

static struct sw_batcher *open_batcher(const struct world *world, int64_t global_batch,
                                       bool shuffle, bool group)
{
    struct sw_err err = {0};
    struct sw_batcher *batcher;
    struct sw_batcher_options options = {
        .global_batch = global_batch, .shuffle = shuffle, .seed = 7, .group_by_length = group};
    assert_ok(sw_batcher_open(world->dataset, &options, &batcher, &err), &err);
    return batcher;
}

static void test_file_order_wraps(void **state)
{
    struct sw_batcher *batcher = open_batcher(*state, 4, false, false);
    for (int64_t step = 0; step < 12; step++) {
        struct sw_batch batch = sw_batcher_step(batcher, step);
        int64_t tokens = 0;
        assert_int_equal(batch.count, 4);
        for (int64_t i = 0; i < 4; i++) {
            assert_int_equal(number_of(&batch.rows[i]), (step * 4 + i) % ROWS);
            assert_int_equal(batch.global_rows[i], i);
            tokens += (step * 4 + i) % ROWS % 3 == 0 ? 1 : 3; /* a lone EOS, or two and EOS */
        }
        assert_int_equal(batch.target_tokens, tokens);
    }
    sw_batcher_close(batcher);
}

static void test_shuffled_epochs_hold_every_row_once(void **state)
{
    struct sw_batcher *batcher = open_batcher(*state, 3, true, false);
    int64_t order[40 * ROWS];
    for (int64_t step = 0; step < 40 * ROWS / 3; step++) {
        struct sw_batch batch = sw_batcher_step(batcher, step);
        for (int64_t i = 0; i < 3; i++)
            order[step * 3 + i] = number_of(&batch.rows[i]);
    }
    int64_t same_as_first = 0, in_place = 0;
    for (int64_t epoch = 0; epoch < 39; epoch++) {
        int seen[ROWS] = {0};
        int64_t equal = 0, expected[ROWS];
        sw_batcher_permutation(ROWS, 7, epoch, expected);
        for (int64_t i = 0; i < ROWS; i++) {
            int64_t row = order[epoch * ROWS + i];
            assert_int_equal(row, expected[i]);
            seen[row]++;
            equal += row == order[i];
            in_place += row == i;
        }
        for (int i = 0; i < ROWS; i++)
            assert_int_equal(seen[i], 1);
        same_as_first += equal == ROWS;
    }
    assert_int_equal(same_as_first, 1); /* the first itself: 38 others repeat with odds 1e-5 */
    assert_true(in_place > 10 && in_place < 80); /* 39 expected, standard deviation 6 */
    sw_batcher_close(batcher);
}

static void test_a_step_is_the_same_whatever_came_before(void **state)
{
    struct sw_batcher *one = open_batcher(*state, 7, true, true);
    struct sw_batcher *other = open_batcher(*state, 7, true, true);
    for (int64_t step = 30; step >= 0; step--) {
        struct sw_batch a = sw_batcher_step(one, step), b = sw_batcher_step(other, 30 - step);
        (void)a;
        b = sw_batcher_step(other, step);
        for (int64_t i = 0; i < 7; i++) {
            assert_int_equal(number_of(&a.rows[i]), number_of(&b.rows[i]));
            assert_int_equal(a.global_rows[i], b.global_rows[i]);
        }
    }
    sw_batcher_close(one);
    sw_batcher_close(other);
}

static void test_other_seed_other_order(void **state)
{
    (void)state;
    int64_t a[100], b[100], equal = 0;
    sw_batcher_permutation(100, 1, 0, a);
    sw_batcher_permutation(100, 2, 0, b);
    for (int i = 0; i < 100; i++)
        equal += a[i] == b[i];
    assert_true(equal < 20);
    sw_batcher_permutation(1, 1, 0, a);
    assert_int_equal(a[0], 0);
}

/* Every one of the 6 orders of 3 rows comes up about equally often: 6000 epochs, 1000 expected,
 * standard deviation 29. */
static void test_permutation_is_uniform(void **state)
{
    (void)state;
    int counts[27] = {0}, orders = 0;
    for (int64_t epoch = 0; epoch < 6000; epoch++) {
        int64_t order[3];
        sw_batcher_permutation(3, 5, epoch, order);
        counts[order[0] * 9 + order[1] * 3 + order[2]]++;
    }
    for (int i = 0; i < 27; i++) {
        orders += counts[i] > 0;
        assert_true(counts[i] == 0 || (counts[i] > 850 && counts[i] < 1150));
    }
    assert_int_equal(orders, 6);
}

static void test_group_by_length(void **state)
{
    struct sw_batcher *grouped = open_batcher(*state, 12, true, true);
    struct sw_batcher *plain = open_batcher(*state, 12, true, false);
    for (int64_t step = 0; step < 8; step++) {
        struct sw_batch batch = sw_batcher_step(grouped, step);
        struct sw_batch wanted = sw_batcher_step(plain, step);
        int seen[12] = {0};
        assert_int_equal(batch.target_tokens, wanted.target_tokens);
        for (int64_t i = 0; i < 12; i++) {
            int32_t number = batch.global_rows[i];
            assert_true(number >= 0 && number < 12 && !seen[number]++);
            assert_int_equal(number_of(&batch.rows[i]), number_of(&wanted.rows[number]));
            if (i > 0)
                assert_true(batch.rows[i - 1].source_length >= batch.rows[i].source_length);
            if (i > 0 && batch.rows[i - 1].source_length == batch.rows[i].source_length)
                assert_true(batch.global_rows[i - 1] < number);
        }
    }
    sw_batcher_close(grouped);
    sw_batcher_close(plain);
}

static void test_micro_batches(void **state)
{
    struct sw_batcher *batcher = open_batcher(*state, 7, false, false);
    struct sw_batch batch = sw_batcher_step(batcher, 0);
    for (int64_t micro_batch = 1; micro_batch <= 8; micro_batch++) {
        int64_t rows = 0, tokens = 0, parts = sw_micro_batches(batch.count, micro_batch);
        for (int64_t part = 0; part < parts; part++) {
            struct sw_batch piece = sw_micro_batch(&batch, micro_batch, part);
            assert_true(piece.count == micro_batch || part == parts - 1);
            assert_int_equal(piece.global_rows[0], rows);
            rows += piece.count;
            tokens += piece.target_tokens;
        }
        assert_int_equal(rows, 7);
        assert_int_equal(tokens, batch.target_tokens);
    }
    sw_batcher_close(batcher);
}

static void test_in_order(void **state)
{
    struct sw_batcher *batcher = open_batcher(*state, 4, true, true);
    int64_t rows = 0;
    for (int64_t first = 0; first < ROWS; first += 4) {
        struct sw_batch batch = sw_batcher_in_order(batcher, first, 4);
        for (int64_t i = 0; i < batch.count; i++)
            assert_int_equal(number_of(&batch.rows[i]), rows++);
    }
    assert_int_equal(rows, ROWS);
    assert_int_equal(sw_batcher_in_order(batcher, ROWS, 4).count, 0);
    sw_batcher_close(batcher);
}

static void test_steps(void **state)
{
    (void)state;
    assert_int_equal(sw_batcher_steps(10, 1, 4), 3);
    assert_int_equal(sw_batcher_steps(10, 2, 4), 5);
    assert_int_equal(sw_batcher_steps(8, 1, 4), 2);
    assert_int_equal(sw_batcher_steps(3, 1, 64), 1);
    assert_int_equal(sw_batcher_steps(INT64_MAX / 2, 3, 1), -1);
}

static void test_options_are_checked(void **state)
{
    struct world *world = *state;
    struct sw_err err = {0};
    struct sw_batcher *batcher;
    struct sw_batcher_options options = {.global_batch = 0};
    assert_refused(sw_batcher_open(world->dataset, &options, &batcher, &err), SW_E_USAGE,
                   "train.global_batch", &err);
}

/* --- data sets ----------------------------------------------------------------------- */

static void write_file(const char *path, const char *text)
{
    struct sw_err err = {0};
    assert_ok(sw_file_write_atomic(path, text, (int64_t)strlen(text), &err), &err);
}

static void count_calls(void *context, int64_t rows, int64_t bytes_read, int64_t file_bytes)
{
    int64_t *last = context;
    assert_true(rows >= last[0] && bytes_read >= last[1] && bytes_read <= file_bytes);
    last[0] = rows;
    last[1] = bytes_read;
    last[2]++;
}

static void test_dataset_is_the_same_on_any_threads(void **state)
{
    struct world *world = *state;
    struct sw_err err = {0};
    struct sw_dataset *sets[2];
    int64_t calls[3] = {0};
    char *path = sw_path_join(world->directory, "long.tsv");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("target\tnumber\tsource\n", file);
    for (int row = 0; row < 3000; row++)
        fprintf(file, "%.*s\t%d\t%.*s\n", row % 5, "a b c", row, row % 11, "a a a b b c c");
    fclose(file);
    struct sw_dataset_options options = {.max_source_length = 4,
                                         .max_target_length = 3,
                                         .progress = count_calls,
                                         .progress_context = calls};
    for (int i = 0; i < 2; i++) {
        struct sw_pool *pool;
        calls[0] = calls[1] = 0;
        assert_ok(sw_pool_open(&pool, i == 0 ? 1 : 3, &err), &err);
        assert_ok(sw_dataset_load(path, world->tokenizer, pool, &options, &sets[i], &err), &err);
        sw_pool_close(pool);
    }
    assert_int_equal(calls[0], 3000);
    assert_true(calls[2] >= 4);
    const struct sw_dataset_statistics *statistics = sw_dataset_statistics(sets[0]);
    int64_t tokens = 0;
    assert_int_equal(statistics->rows, 3000);
    assert_int_equal(statistics->longest_source, 4);
    assert_int_equal(statistics->longest_target, 3);
    assert_true(statistics->truncated_sources > 0 && statistics->truncated_sources < 3000);
    assert_memory_equal(statistics, sw_dataset_statistics(sets[1]), sizeof *statistics);
    for (int64_t i = 0; i < 3000; i++) {
        struct sw_row a = sw_dataset_row(sets[0], i), b = sw_dataset_row(sets[1], i);
        assert_int_equal(a.source_length, b.source_length);
        assert_int_equal(a.target_length, b.target_length);
        assert_memory_equal(a.source, b.source, (size_t)a.source_length * sizeof *a.source);
        assert_memory_equal(a.target, b.target, (size_t)a.target_length * sizeof *a.target);
        assert_int_equal(a.target[a.target_length - 1], 1);
        tokens += a.source_length;
    }
    assert_int_equal(tokens, statistics->source_tokens);
    sw_dataset_free(sets[0]);
    sw_dataset_free(sets[1]);
    free(path);
}

static void test_dataset_refuses(void **state)
{
    struct world *world = *state;
    struct sw_err err = {0};
    struct sw_dataset *dataset = NULL;
    struct sw_tokenizer *small;
    struct sw_dataset_options options = {0};
    char *path = sw_path_join(world->directory, "bad.jsonl");
    write_file(path, "\n\n");
    assert_refused(sw_dataset_load(path, world->tokenizer, world->pool, &options, &dataset, &err),
                   SW_E_FORMAT, "holds no rows", &err);
    write_file(path,
               "{\"source\": \"a\", \"target\": \"b\"}\n\n{\"source\": 1, \"target\": \"\"}\n");
    assert_refused(sw_dataset_load(path, world->tokenizer, world->pool, &options, &dataset, &err),
                   SW_E_FORMAT, "bad.jsonl, line 3: field \"source\"", &err);
    options.skip_bad = true;
    assert_ok(sw_dataset_load(path, world->tokenizer, world->pool, &options, &dataset, &err), &err);
    assert_int_equal(sw_dataset_rows(dataset), 1);
    assert_int_equal(sw_dataset_statistics(dataset)->skipped, 1);
    assert_non_null(strstr(sw_dataset_first_skipped(dataset), "line 3"));
    sw_dataset_free(dataset);
    /* an id that the model does not have is a bad row as well */
    assert_ok(sw_tokenizer_open(world->directory, 12, &small, &err), &err);
    write_file(path, "{\"source\": \"a\", \"target\": \"b\"}\n"
                     "{\"source\": \"<extra_id_0>\", \"target\": \"\"}\n");
    assert_ok(sw_dataset_load(path, small, world->pool, &options, &dataset, &err), &err);
    assert_int_equal(sw_dataset_statistics(dataset)->skipped, 1);
    sw_dataset_free(dataset);
    options.skip_bad = false;
    assert_refused(sw_dataset_load(path, small, world->pool, &options, &dataset, &err), SW_E_FORMAT,
                   "bad.jsonl, line 2: the text holds <extra_id_0>, whose id 111 is beyond", &err);
    sw_tokenizer_close(small);
    options.source_only = true;
    write_file(path, "{\"source\": \"a\"}\n");
    assert_ok(sw_dataset_load(path, world->tokenizer, world->pool, &options, &dataset, &err), &err);
    assert_int_equal(sw_dataset_row(dataset, 0).target_length, 0);
    sw_dataset_free(dataset);
    free(path);
}

static void test_tokenize_prints_every_row(void **state)
{
    struct world *world = *state;
    struct sw_err err = {0};
    struct sw_tokenize_counts counts;
    struct sw_tokenize_options options = {.max_source_length = 3};
    char *path = sw_path_join(world->directory, "some.csv"), *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    write_file(path, "source,target\na a a a,\n\"\",a\nb\n");
    assert_refused(sw_tokenize_file(path, world->tokenizer, &options, out, &counts, &err),
                   SW_E_FORMAT, "some.csv, line 4: 1 fields", &err);
    rewind(out);
    options.skip_bad = true;
    assert_ok(sw_tokenize_file(path, world->tokenizer, &options, out, &counts, &err), &err);
    assert_int_equal(counts.rows, 2);
    assert_int_equal(counts.skipped, 1);
    fclose(out);
    int32_t a = sw_dataset_row(world->dataset, 0).source[0];
    char wanted[200];
    snprintf(wanted, sizeof wanted,
             "{\"source_ids\": [%d, %d, 1], \"target_ids\": [1]}\n"
             "{\"source_ids\": [1], \"target_ids\": [%d, 1]}\n",
             (int)a, (int)a, (int)a);
    assert_string_equal(text, wanted);
    /* a full disk is told */
    out = fopen("/dev/full", "w");
    if (out != NULL) {
        assert_refused(sw_tokenize_file(path, world->tokenizer, &options, out, &counts, &err),
                       SW_E_IO, "cannot write the ids", &err);
        fclose(out);
    }
    free(text);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_order_wraps),
        cmocka_unit_test(test_shuffled_epochs_hold_every_row_once),
        cmocka_unit_test(test_a_step_is_the_same_whatever_came_before),
        cmocka_unit_test(test_other_seed_other_order),
        cmocka_unit_test(test_permutation_is_uniform),
        cmocka_unit_test(test_group_by_length),
        cmocka_unit_test(test_micro_batches),
        cmocka_unit_test(test_in_order),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_options_are_checked),
        cmocka_unit_test(test_dataset_is_the_same_on_any_threads),
        cmocka_unit_test(test_dataset_refuses),
        cmocka_unit_test(test_tokenize_prints_every_row),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
