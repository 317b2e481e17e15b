/* The command line: help, refusals with their exit status, the manual page. */
#include "tests/command.h"

/* A command line of words, its status and what its output or log must hold. */
static void expect(const char *words, int status, const char *part)
{
    struct sw_test_output output = sw_test_expect(NULL, words, status, part);
    sw_test_output_free(&output);
}

static void help_is_there(void **state)
{
    (void)state;
    expect("--help", 0, "fine-tune a model");
    expect("help", 0, "Exit status");
    expect("generate --help", 0, "generate --model DIR --input FILE|- [--max-new-tokens N]");
    expect("--version", 0, PACKAGE_VERSION);
    expect("help config", 0, "optimizer.max_grad_norm");
    for (int i = 0; sw_commands[i] != NULL; i++) {
        char words[64];
        snprintf(words, sizeof words, "%s --help", sw_commands[i]->name);
        expect(words, 0, "usage: spillway ");
        snprintf(words, sizeof words, "help %s", sw_commands[i]->name);
        expect(words, 0, sw_commands[i]->summary);
    }
}

static void bad_usage_is_refused_by_name(void **state)
{
    (void)state;
    expect("trian job.yaml", 2, "did you mean train?");
    expect("nit", 2, "did you mean init?");
    expect("help generat", 2, "did you mean generate?");
    expect("", 2, "a command is needed");
    expect("eval job.yaml", 2, "eval needs --model");
    expect("generate --model", 2, "--model needs a value");
    expect("train -- --odd.yaml", 2, "--odd.yaml");
    expect("init --preset t5-small --tokenizer x", 2, "init needs --out");
    expect("train", 2, "train needs CONFIG.yaml");
    expect("train a.yaml b.yaml", 2, "what is b.yaml for?");
    expect("train a.yaml --resum auto", 2, "no option --resum; it has --resume");
    expect("train a.yaml --resume", 2, "--resume needs a value");
    expect("train a.yaml --resume auto --resume auto", 2, "given twice");
    expect("train no-such.yaml", 2, "no-such.yaml");
    expect("generate --model m", 2, "generate needs --input");
    expect("generate --model m --input - --beams 0", 2, "--beams: 0 is not a whole number");
    expect("generate --model no-such-model --input -", 2, "no-such-model");
    expect("generate --model m --input - --set optimizer.lrr=1", 2, "nearest is optimizer.lr");
    expect("plan no-such.yaml --json=1", 2, "--json takes no value");
    expect("init --preset t5-tiny --tokenizer x --out no-such-dir", 2, "t5-small");
    expect("init --tokenizer x --out no-such-dir", 2, "one of --preset and --config");
    expect("inspect", 2, "inspect needs PATH");
    expect("inspect no-such", 2, "no-such");
}

/* What an option names and cannot be used is bad usage, and the option is named. */
static void bad_paths_are_refused_by_name(void **state)
{
    (void)state;
    expect("generate --model m --input no-such", 2, "--input: there is no file no-such");
    expect("generate --model m --input /", 2, "--input: / is a directory");
    expect("tokenize --model m --input no-such", 2, "--input: there is no file no-such");
    expect("tokenize --model m --input /", 2, "--input: / is a directory");
    expect("tokenize --model no-such --input -", 2, "--model: cannot open no-such");
    expect("init --preset t5-small --tokenizer no-such --out o", 2, "--tokenizer: cannot open");
    expect("init --config no-such --tokenizer x --out o", 2, "--config: cannot open no-such");
    expect("init --preset t5-small --tokenizer x --out /proc/x", 2, "--out: cannot write to /proc");
    expect("probe --quick --out no-such/file", 2, "--out: there is no folder no-such");
    expect("probe --quick --out /", 2, "--out: / is a directory");
    expect("probe --quick --out /dev/null", 2, "--out: /dev/null is a device");
    expect("probe --quick --dir no-such", 2, "--dir: there is no directory no-such");
    expect("bench io --dir no-such", 2, "--dir: there is no directory no-such");
    expect("bench io --dir /proc", 2, "--dir: cannot write to /proc");
}

/* Output that cannot be written is a failure. */
static void lost_output_is_a_failure(void **state)
{
    (void)state;
    char *argv[] = {(char[]){"spillway"}, (char[]){"help"}};
    if (!sw_file_exists("/dev/full")) {
        print_message("skipped: there is no /dev/full\n");
        skip();
    }
    fflush(NULL);
    int keep = dup(1);
    assert_non_null(freopen("/dev/full", "w", stdout));
    int status = sw_main(2, argv);
    clearerr(stdout);
    dup2(keep, 1);
    close(keep);
    assert_int_equal(status, 1);
}

/* Every command and every option of the tables is in the manual page. */
static void the_manual_is_complete(void **state)
{
    (void)state;
    char *manual = sw_test_slurp(SW_SOURCE_DIRECTORY "/docs/spillway.1");
    for (int i = 0; sw_commands[i] != NULL; i++) {
        char part[64];
        snprintf(part, sizeof part, "spillway %s", sw_commands[i]->name);
        if (strstr(manual, part) == NULL)
            fail_msg("the manual lacks %s", part);
        for (int j = 0; sw_commands[i]->options[j].name != NULL; j++) {
            const char *name = sw_commands[i]->options[j].name;
            size_t used = 0; /* hyphens are escaped there */
            for (size_t k = 0; name[k] != '\0' && used + 3 < sizeof part; k++) {
                if (name[k] == '-')
                    part[used++] = '\\';
                part[used++] = name[k];
            }
            part[used] = '\0';
            if (strstr(manual, part) == NULL)
                fail_msg("the manual lacks --%s of %s", name, sw_commands[i]->name);
        }
    }
    free(manual);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_is_there),
        cmocka_unit_test(bad_usage_is_refused_by_name),
        cmocka_unit_test(bad_paths_are_refused_by_name),
        cmocka_unit_test(lost_output_is_a_failure),
        cmocka_unit_test(the_manual_is_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
