#include "support.h"

#include "base/text.h"
#include "config/config.h"
#include "optim/optim.h"

static sw_code parse(struct sw_config *config, const char *text, struct sw_err *err)
{
    sw_config_deinit(config);
    if (sw_config_init(config, err) != SW_OK)
        return err->code;
    return sw_config_parse(config, text, (int64_t)strlen(text), "job.yaml", err);
}

static void test_values(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_config c = {0};
    assert_ok(parse(&c,
                    "# a job\n"
                    "model: {path: some where, random_init: true}\n"
                    "data:\n  train: \"123\"\n  seed: 9007199254740992\n  on_bad_row: skip\n"
                    "train:\n  steps: 10\n  dropout: .5\n  freeze:\n    - shared*\n    - '*norm*'\n"
                    "optimizer:\n  lr: 1e-3\n  betas: [0.5, 9e-1]\n  eps: 1E-6\n"
                    "  schedule: inverse_sqrt\n"
                    "devices:\n  list: [0, 0, 1, 1]\n  memory: 22.5GiB\n  count: 4\n"
                    "parallel: {pipeline: 4}\n"
                    "offload:\n  nvme: /mnt/a\n  host_memory: 3 MiB\n"
                    "output:\n  dtype: bfloat16\n"
                    "run:\n  max_time: 8h30m\n"
                    "io:\n"
                    "precision.grads: bf16\n",
                    &err),
              &err);
    assert_ok(sw_config_check(&c, &err), &err);
    assert_string_equal(c.model.path, "some where");
    assert_true(c.model.random_init);
    assert_string_equal(c.data.train, "123");
    assert_int_equal(c.data.seed, INT64_C(1) << 53);
    assert_int_equal(c.data.on_bad_row, SW_CFG_SKIP);
    assert_true(c.train.dropout >= 0.5 && c.train.dropout <= 0.5);
    assert_int_equal(c.train.freeze.count, 2);
    assert_string_equal(c.train.freeze.items[1], "*norm*");
    assert_true(c.optimizer.lr >= 1e-3 && c.optimizer.lr <= 1e-3);
    assert_true(c.optimizer.betas[1] >= 0.9 && c.optimizer.betas[1] <= 0.9);
    assert_int_equal(c.optimizer.schedule, SW_CFG_INVERSE_SQRT);
    assert_int_equal(c.devices.list.count, 4);
    assert_int_equal(c.devices.list.items[2], 1);
    assert_int_equal(c.devices.memory_bytes, INT64_C(45) << 29);
    assert_int_equal(c.offload.nvme.count, 1);
    assert_int_equal(c.offload.host_memory_bytes, 3 << 20);
    assert_int_equal(c.output.dtype, SW_CFG_BF16);
    assert_int_equal(c.precision.grads, SW_CFG_BF16);
    assert_int_equal((int64_t)c.run.max_time_seconds, 30600);
    assert_true(sw_config_given(&c, "optimizer.lr"));
    assert_false(sw_config_given(&c, "optimizer.weight_decay"));
    assert_int_equal(c.data.max_source_length, 512);
    sw_config_deinit(&c);
}

/* A line, the value it asks of `key` refused, and what the message must say beside place and key.
 */
static const struct {
    const char *section, *line, *part;
} wrong_values[] = {
    {"train", "steps: ten", "ten is not a whole number"},
    {"train", "steps: 3.5", "3.5 is not a whole number"},
    {"train", "steps: 0x10", "0x10 is not a whole number"},
    {"train", "steps: \"10\"", "\"10\" is not a number (it stands in quotes)"},
    {"train", "steps: -1", "-1 is out of range; from 0"},
    {"train", "steps: 99999999999999999999", "is not a whole number"},
    {"train", "steps: [1]", "takes one value, not a list"},
    {"train", "steps: {a: 1}", "takes a value, not further keys"},
    {"train", "steps:", "has no value"},
    {"train", "dropout: 1.5", "1.5 is out of range; from -1 to 0.99"},
    {"train", "dropout: nan", "nan is not a number"},
    {"train", "dropout: 0x1p-2", "0x1p-2 is not a number"},
    {"train", "dropout: 1e", "1e is not a number"},
    {"train", "freeze: [a, [b]]", "a list holds plain values only"},
    {"train", "freeze: [1]", "1 is not text"},
    {"train", "recompute: yes", "yes is not auto, on or off"},
    {"data", "shuffle: 1", "1 is not true or false"},
    {"data", "shuffle: \"true\"", "\"true\" is not true or false"},
    {"data", "train: 7", "7 is not text"},
    {"data", "train: true", "true is not text"},
    {"data", "train: null", "null is not text"},
    {"data", "train: [a, b]", "takes one value, not a list"},
    {"optimizer", "betas: [0.9]", "wants two numbers"},
    {"optimizer", "betas: 0.9", "takes a list"},
    {"devices", "list: [0, one]", "one is not a whole number"},
    {"devices", "memory: 22GB", "22GB is not a size"},
    {"devices", "memory: 0.0001KiB", "0.0001KiB is not a size"}, /* less than a byte */
    {"devices", "memory: 1.5", "1.5 is not a size"},
    {"devices", "memory: 1.2.3GiB", "1.2.3GiB is not a size"},
    {"devices", "memory: -1", "-1 is not a size"},
    {"devices", "memory: 0x10", "0x10 is not a size"},
    {"devices", "memory: 99999999TiB", "is not a size"},
    {"run", "max_time: 30m8h", "30m8h is not a time"},
    {"run", "max_time: 5 minutes", "5 minutes is not a time"},
    {"run", "max_time: 8h30", "8h30 is not a time"},
    {"run", "max_time: h", "h is not a time"},
};

static void test_wrong_values(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_config c = {0};
    for (size_t i = 0; i < sizeof wrong_values / sizeof *wrong_values; i++) {
        char text[256], place[64];
        snprintf(text, sizeof text, "\n%s:\n  %s\n", wrong_values[i].section, wrong_values[i].line);
        snprintf(place, sizeof place, "%s.%.*s", wrong_values[i].section,
                 (int)strcspn(wrong_values[i].line, ":"), wrong_values[i].line);
        sw_code code = parse(&c, text, &err);
        if (code != SW_E_USAGE || strncmp(err.text, "job.yaml:3", 10) != 0 ||
            (strstr(err.text, place) == NULL && strstr(wrong_values[i].line, "[b]") == NULL))
            fail_msg("%s: \"%s\"", wrong_values[i].line, err.text);
        assert_refused(code, SW_E_USAGE, wrong_values[i].part, &err);
    }
    sw_config_deinit(&c);
}

static void test_unknown_keys(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_config c = {0};
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"train:\n  stpes: 1\n",
         "job.yaml:2: there is no key train.stpes; the nearest is train.steps"},
        {"train:\n  lr: 1\n", "the nearest is optimizer.lr"},
        {"lr: 1\n", "job.yaml:1: there is no key lr; the nearest is optimizer.lr"},
        {"optimiser:\n  lr: 1\n",
         "job.yaml:1: there is no section optimiser; the nearest is optimizer"},
        {"data.trian: x\n", "the nearest is data.train"},
        {"train: {\"steps\\0x\": 1}\n", "this is no key"},
        {"train: {? [a] : 1}\n", "a key was expected"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_refused(parse(&c, cases[i].text, &err), SW_E_USAGE, cases[i].part, &err);
    /* a part of the name, in the wrong section */
    assert_refused(sw_config_set(&c, "train.warmup=1", &err), SW_E_USAGE,
                   "the nearest is optimizer.warmup_steps", &err);
    assert_refused(sw_config_set(&c, "train.num_epochs=1", &err), SW_E_USAGE,
                   "the nearest is train.epochs", &err);
    /* names of other trainers, and words that are in both */
    assert_refused(sw_config_set(&c, "train.learning_rate=1", &err), SW_E_USAGE,
                   "the nearest is optimizer.lr ", &err);
    assert_refused(sw_config_set(&c, "train.batch_size=1", &err), SW_E_USAGE,
                   "the nearest is train.global_batch ", &err);
    assert_refused(sw_config_set(&c, "data.max_length=1", &err), SW_E_USAGE,
                   "the nearest is data.max_source_length ", &err);
    assert_refused(sw_config_set(&c, "train.batch_rows=1", &err), SW_E_USAGE,
                   "the nearest is train.global_batch ", &err);
    assert_refused(sw_config_set(&c, "foo.bar=1", &err), SW_E_USAGE,
                   "there is no key foo.bar, and none like it; the nearest is ", &err);
    assert_refused(sw_config_set(&c, "zzz=1", &err), SW_E_USAGE, "and none like it", &err);
    assert_refused(sw_config_set(&c, "optimizer.lrr=1", &err), SW_E_USAGE,
                   "--set: there is no key optimizer.lrr; the nearest is optimizer.lr", &err);
    sw_config_deinit(&c);
}

/* What YAML has and a configuration has not. */
static void test_not_taken(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_config c = {0};
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"train:\n  steps: 1\n  seed: 2\n  steps: 3\n",
         "job.yaml:4: train.steps is set twice, first in line 2"},
        {"train:\n  steps: 1\ndata:\n  seed: 1\ntrain:\n  seed: 2\n",
         "job.yaml:5: section train is there twice"},
        {"train:\n  steps: 1\ntrain.steps: 2\n", "set twice"},
        {"train:\n  steps: &a 1\n", "job.yaml:2: &anchors are not understood"},
        {"train:\n  freeze: *a\n", "job.yaml:2: *aliases are not understood"},
        {"train:\n  steps: !!int 1\n", "job.yaml:2: !tags are not understood"},
        {"train: &a {steps: 1}\n", "&anchors"},
        {"train: {<<: 1}\n", "there is no key train.<<"},
        {"train:\n  steps: 1\n---\ntrain:\n  seed: 1\n", "job.yaml:3: a second YAML document"},
        {"train:\n\tsteps: 1\n", "job.yaml:2: not YAML: indented by a tab"},
        {"train:\n  steps: [1\n", "not YAML"},
        {"train: {steps: 1\n", "not YAML"},
        {"train: \"a\n", "not YAML"},
        {"train: 5\n", "train is a section"},
        {"train: [steps]\n", "train is a section"},
        {"- train\n", "job.yaml:1: sections with keys were expected"},
        {"train\n", "sections with keys were expected"},
        {"data:\n  train: \"a\\0b\"\n", "job.yaml:2: a NUL"},
        {"data:\n  train: \xff\n", "job.yaml:2: not YAML"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_refused(parse(&c, cases[i].text, &err), SW_E_USAGE, cases[i].part, &err);
    assert_ok(parse(&c, "", &err), &err);
    assert_ok(parse(&c, "# nothing\n", &err), &err);
    assert_ok(parse(&c, "---\n", &err), &err);
    assert_refused(sw_config_read(&c, "/nowhere/job.yaml", &err), SW_E_USAGE, "/nowhere/job.yaml",
                   &err);
    sw_config_deinit(&c);
}

static void test_set(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_config c = {0};
    assert_ok(parse(&c, "train: {steps: 5}\noutput: {dir: a}\n", &err), &err);
    static const char *const settings[] = {
        "train.steps=6",       "train.steps=7",
        "output.dir=123",      "data.eval=a = b: c",
        "data.train=",         "offload.nvme=[/a, /b]",
        "train.freeze=*norm*", "optimizer.betas=[0.1,0.2]",
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        assert_ok(sw_config_set(&c, settings[i], &err), &err);
    assert_int_equal(c.train.steps, 7);
    assert_string_equal(c.output.dir, "123");
    assert_string_equal(c.data.eval, "a = b: c");
    assert_string_equal(c.data.train, "");
    assert_int_equal(c.offload.nvme.count, 2);
    assert_string_equal(c.offload.nvme.items[1], "/b");
    assert_string_equal(c.train.freeze.items[0], "*norm*");
    assert_refused(sw_config_set(&c, "train.steps=x", &err), SW_E_USAGE,
                   "--set: train.steps: x is not a whole number", &err);
    assert_refused(sw_config_set(&c, "train.steps", &err), SW_E_USAGE, "key=value was expected",
                   &err);
    assert_refused(sw_config_set(&c, "=1", &err), SW_E_USAGE, "key=value was expected", &err);
    assert_refused(sw_config_set(&c, "offload.nvme=[/a", &err), SW_E_USAGE,
                   "--set: offload.nvme: the list [/a has no ] at its end", &err);
    assert_refused(sw_config_set(&c, "offload.nvme=['/a", &err), SW_E_USAGE, "--set: not YAML",
                   &err);
    assert_refused(sw_config_set(&c, "offload.nvme=[a,,b]", &err), SW_E_USAGE, "offload.nvme",
                   &err);
    assert_refused(sw_config_set(&c, "train.steps=[1]", &err), SW_E_USAGE, "not a list", &err);
    assert_int_equal(c.train.steps, 7);
    sw_config_deinit(&c);
}

/* Patterns need no quotes, and quotes do what they do in a file. */
static void test_set_patterns(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_config c = {0};
    assert_ok(parse(&c, "train: {steps: 5}\n", &err), &err);
    assert_ok(sw_config_set(&c, "train.freeze=[*]", &err), &err);
    assert_int_equal(c.train.freeze.count, 1);
    assert_string_equal(c.train.freeze.items[0], "*");
    assert_ok(sw_config_set(&c, "train.freeze=[ *norm*, 12 ,&a b ] ", &err), &err);
    assert_int_equal(c.train.freeze.count, 3);
    assert_string_equal(c.train.freeze.items[1], "12");
    assert_string_equal(c.train.freeze.items[2], "&a b");
    assert_ok(sw_config_set(&c, "train.freeze=['a, b', \"c\"]", &err), &err);
    assert_string_equal(c.train.freeze.items[0], "a, b");
    assert_ok(sw_config_set(&c, "train.freeze=[]", &err), &err);
    assert_int_equal(c.train.freeze.count, 0);
    sw_config_deinit(&c);
}

static void test_set_times(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_config c = {0};
    assert_ok(parse(&c, "train: {steps: 5}\n", &err), &err);
    static const struct {
        const char *text;
        double seconds;
    } times[] = {{"0.5s", 0.5}, {"1.5h", 5400}, {"90", 90}, {"1m0.25s", 60.25}, {"2d", 172800}};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "run.max_time=%s", times[i].text);
        assert_ok(sw_config_set(&c, text, &err), &err);
        assert_true(c.run.max_time_seconds == times[i].seconds);
    }
    assert_refused(sw_config_set(&c, "run.max_time=.s", &err), SW_E_USAGE, "0.5m", &err);
    assert_refused(sw_config_set(&c, "run.max_time=1.2.3s", &err), SW_E_USAGE, "0.5m", &err);
    sw_config_deinit(&c);
}

static void test_required(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_config c = {0};
    assert_ok(parse(&c, "output: {dir: \"\"}\n", &err), &err);
    assert_refused(sw_config_require(&c, "model.path", &err), SW_E_USAGE,
                   "job.yaml: model.path is not set", &err);
    assert_refused(sw_config_require(&c, "output.dir", &err), SW_E_USAGE, "output.dir is not set",
                   &err);
    assert_ok(sw_config_set(&c, "model.path=x", &err), &err);
    assert_ok(sw_config_require(&c, "model.path", &err), &err);
    sw_config_deinit(&c);
}

/* Both keys of a clash are named, and the line of one that was set. */
static void test_clashes(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_config c = {0};
    static const struct {
        const char *text, *first, *second;
    } cases[] = {
        {"train: {steps: 1, epochs: 1}", "train.steps", "train.epochs"},
        {"train: {global_batch: 4, micro_batch: 8}", "train.micro_batch", "train.global_batch"},
        {"train: {global_batch: 4, micro_batch: 4}\nparallel: {data: 2}", "train.micro_batch",
         "train.global_batch"},
        {"train: {global_batch: 1}\nparallel: {data: 2}", "parallel.data", "train.global_batch"},
        {"output: {eval_every: 5}", "output.eval_every", "data.eval"},
        {"precision: {compute: fp16}", "precision.compute", "bf16 or fp32"},
        {"optimizer: {where: device}\noffload: {optimizer: host}", "optimizer.where",
         "offload.optimizer"},
        {"optimizer: {where: host}\noffload: {optimizer: device}", "optimizer.where",
         "offload.optimizer"},
        {"devices: {count: 3}\nparallel: {data: 2}", "devices.count", "parallel.data"},
        {"devices: {list: [0, 1]}", "devices.list names 2 devices,", "parallel.pipeline"},
        {"devices: {list: [0]}\nparallel: {data: 2}", "devices.list names 1 device,",
         "parallel.data"},
        {"offload: {params: nvme}", "offload.params", "offload.nvme"},
        {"offload: {optimizer: nvme}", "offload.optimizer", "offload.nvme"},
        {"offload: {grads: nvme}", "offload.grads", "offload.nvme"},
        {"offload: {activations: nvme}", "offload.activations", "offload.nvme"},
        {"offload: {nvme_capacity: 1GiB}", "offload.nvme_capacity", "offload.nvme"},
        {"offload: {nvme: [/a, /b, /a]}", "offload.nvme", "/a twice"},
        {"output: {dir: ~/run}", "output.dir", "write the whole path"},
        {"offload: {nvme: [/a, ~/spill]}", "offload.nvme", "~ of ~/spill"},
        {"data: {text_field: body}", "data.text_field", "data.source_field"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_ok(parse(&c, cases[i].text, &err), &err);
        sw_code code = sw_config_check(&c, &err);
        if (code != SW_E_USAGE || strncmp(err.text, "job.yaml:", 9) != 0 ||
            strstr(err.text, cases[i].second) == NULL)
            fail_msg("%s: \"%s\"", cases[i].text, err.text);
        assert_refused(code, SW_E_USAGE, cases[i].first, &err);
    }
    sw_config_deinit(&c);
}

static void test_locate(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_config c = {0};
    assert_ok(parse(&c, "train:\n  seed: 1\noptimizer:\n  lr: 2\n", &err), &err);
    (void)SW_FAIL(&err, SW_E_USAGE, "the key optimizer.lr: too much, see train.seed");
    assert_refused(sw_config_locate(&c, &err), SW_E_USAGE, "job.yaml:4: the key optimizer.lr",
                   &err);
    (void)SW_FAIL(&err, SW_E_USAGE, "optimizer.eps is odd");
    assert_int_equal(sw_config_locate(&c, &err), SW_E_USAGE);
    assert_string_equal(err.text, "optimizer.eps is odd");
    sw_err_init(&err);
    (void)SW_FAIL(&err, SW_E_IO, "optimizer.lr");
    assert_int_equal(sw_config_locate(&c, &err), SW_E_IO);
    assert_string_equal(err.text, "optimizer.lr");
    sw_err_init(&err);
    assert_ok(sw_config_set(&c, "optimizer.lr=3", &err), &err);
    (void)SW_FAIL(&err, SW_E_USAGE, "optimizer.lr: no");
    assert_refused(sw_config_locate(&c, &err), SW_E_USAGE, "--set: optimizer.lr", &err);
    sw_config_deinit(&c);
}

static void test_dump_reads_back(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_config c = {0}, again = {0};
    struct sw_text first = {0}, second = {0};
    assert_ok(
        parse(&c, "train: {steps: 5, freeze: [\"a\\\"b\", '*']}\noptimizer: {lr: 0.1}\n", &err),
        &err);
    assert_ok(sw_config_set(&c, "data.train=odd \"name\": #\n\x01\x7f é", &err), &err);
    assert_ok(sw_config_set(&c, "devices.memory=22.7GiB", &err), &err);
    assert_true(c.devices.memory_bytes == 24373939404); /* and four fifths */
    assert_ok(sw_config_set(&c, "devices.memory=3GiB", &err), &err);
    assert_ok(sw_config_set(&c, "output.dtype=float16", &err), &err);
    assert_ok(sw_config_set(&c, "devices.list=[1, 0]", &err), &err);
    sw_config_dump(&c, &first);
    assert_ok(sw_text_check(&first, "dump", &err), &err);
    assert_ok(parse(&again, first.bytes, &err), &err);
    sw_config_dump(&again, &second);
    assert_string_equal(first.bytes, second.bytes);
    assert_string_equal(again.data.train, c.data.train);
    assert_int_equal(again.devices.memory_bytes, INT64_C(3) << 30);
    assert_memory_equal(again.given, c.given, sizeof c.given);
    assert_non_null(strstr(first.bytes, "\n  lr: 0.1\n"));
    assert_non_null(strstr(first.bytes, "\n  # eps: 1e-08\n"));
    free(first.bytes);
    free(second.bytes);
    sw_config_deinit(&c);
    sw_config_deinit(&again);
}

/* Adafactor has defaults of its own, which are those that the optimizer has by itself. */
static void test_settled_defaults(void **state)
{
    (void)state;
    static const enum sw_optim_name names[] = {SW_OPTIM_ADAMW, SW_OPTIM_ADAFACTOR};
    for (int i = 0; i < 2; i++) {
        struct sw_err err = {0};
        struct sw_config c = {0};
        struct sw_optim_settings settings;
        struct sw_text dump = {0};
        char text[64];
        snprintf(text, sizeof text, "optimizer: {name: %s}", sw_optim_name_text(names[i]));
        assert_ok(parse(&c, text, &err), &err);
        assert_ok(sw_config_settle(&c, &err), &err);
        sw_optim_settings_init(&settings, names[i]);
        assert_true(c.optimizer.lr >= settings.lr && c.optimizer.lr <= settings.lr);
        assert_true(c.optimizer.max_grad_norm >= settings.max_grad_norm &&
                    c.optimizer.max_grad_norm <= settings.max_grad_norm);
        assert_false(sw_config_given(&c, "optimizer.lr"));
        sw_config_dump(&c, &dump);
        assert_non_null(strstr(dump.bytes, i == 0 ? "# lr: 0.0001\n" : "# lr: 0.001\n"));
        assert_ok(sw_config_set(&c, "optimizer.lr=5e-3", &err), &err);
        assert_ok(sw_config_settle(&c, &err), &err);
        assert_true(c.optimizer.lr > 4e-3);
        free(dump.bytes);
        sw_config_deinit(&c);
    }
}

/* docs/CONFIG.md has the tables that the program makes. */
static void test_docs(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_text tables = {0}, help = {0};
    char *text;
    sw_config_help_markdown(&tables);
    sw_config_help(&help);
    assert_ok(sw_text_check(&tables, "tables", &err), &err);
    assert_ok(sw_text_check(&help, "help", &err), &err);
    assert_ok(sw_file_read(SW_SOURCE_DIRECTORY "/docs/CONFIG.md", 1 << 20, &text, NULL, &err),
              &err);
    if (strstr(text, tables.bytes) == NULL)
        fail_msg("docs/CONFIG.md is out of date: put in the output of "
                 "`spillway help config --markdown`");
    for (int i = 0; i < sw_config_count(); i++) {
        assert_non_null(strstr(help.bytes, sw_config_key(i)));
        assert_true(strlen(sw_config_key_help(i)) > 8);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(sw_config_key(i), sw_config_key(j));
    }
    free(text);
    free(tables.bytes);
    free(help.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_wrong_values),
        cmocka_unit_test(test_unknown_keys),
        cmocka_unit_test(test_not_taken),
        cmocka_unit_test(test_set),
        cmocka_unit_test(test_set_patterns),
        cmocka_unit_test(test_set_times),
        cmocka_unit_test(test_required),
        cmocka_unit_test(test_clashes),
        cmocka_unit_test(test_locate),
        cmocka_unit_test(test_dump_reads_back),
        cmocka_unit_test(test_settled_defaults),
        cmocka_unit_test(test_docs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
