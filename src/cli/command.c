#include "cli/command.h"

#include "base/text.h"
#include "config/config.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct sw_command *const sw_commands[] = {&sw_command_train,    &sw_command_plan,
                                                &sw_command_eval,     &sw_command_generate,
                                                &sw_command_tokenize, &sw_command_init,
                                                &sw_command_inspect,  &sw_command_probe,
                                                &sw_command_bench,    NULL};

static const struct sw_command *find_command(const char *name)
{
    for (int i = 0; sw_commands[i] != NULL; i++)
        if (strcmp(sw_commands[i]->name, name) == 0)
            return sw_commands[i];
    return NULL;
}

static const char *nearest_command(const char *name)
{
    const char *best = sw_commands[0]->name;
    for (int i = 1; sw_commands[i] != NULL; i++)
        if (sw_text_distance(name, sw_commands[i]->name) < sw_text_distance(name, best))
            best = sw_commands[i]->name;
    return best;
}

static int find_option(const struct sw_command *command, const char *name, size_t bytes)
{
    for (int i = 0; i < SW_CLI_OPTIONS && command->options[i].name != NULL; i++)
        if (strlen(command->options[i].name) == bytes &&
            memcmp(command->options[i].name, name, bytes) == 0)
            return i;
    return -1;
}

const char *sw_cli_value(const struct sw_command *command, const struct sw_cli_args *args,
                         const char *name)
{
    int index = find_option(command, name, strlen(name));
    sw_assert(index >= 0);
    return args->values[index];
}

sw_code sw_cli_integer(const struct sw_command *command, const struct sw_cli_args *args,
                       const char *name, int64_t least, int64_t most, int64_t otherwise,
                       int64_t *out, struct sw_err *err)
{
    const char *value = sw_cli_value(command, args, name);
    if (value == NULL) {
        *out = otherwise;
        return SW_OK;
    }
    char *end;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    if (*value == '\0' || *end != '\0' || errno != 0 || number < least || number > most)
        return SW_FAIL(err, SW_E_USAGE, "--%s: %s is not a whole number from %lld to %lld", name,
                       value, (long long)least, (long long)most);
    *out = number;
    return SW_OK;
}

static bool is_needed(const struct sw_command *command, const char *name)
{
    for (int i = 0; i < SW_CLI_NEEDED && command->needed[i] != NULL; i++)
        if (strcmp(command->needed[i], name) == 0)
            return true;
    return false;
}

/* ---- help ---- */

static void print_usage(const struct sw_command *command)
{
    printf("usage: spillway %s", command->name);
    if (command->positional != NULL)
        printf(command->positional_needed ? " %s" : " [%s]", command->positional);
    if (command->second != NULL)
        printf(" [%s]", command->second);
    for (int i = 0; command->options[i].name != NULL; i++) {
        const struct sw_cli_option *option = &command->options[i];
        bool needed = is_needed(command, option->name);
        printf(" %s--%s%s%s%s", needed ? "" : "[", option->name, option->value != NULL ? " " : "",
               option->value != NULL ? option->value : "", needed ? "" : "]");
    }
    printf("%s\n", command->takes_set ? " [--set KEY=VALUE]..." : "");
}

static void print_command_help(const struct sw_command *command)
{
    print_usage(command);
    printf("\n%s\n\n", command->summary);
    for (int i = 0; command->options[i].name != NULL; i++) {
        const struct sw_cli_option *option = &command->options[i];
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s", option->name, option->value != NULL ? " " : "",
                 option->value != NULL ? option->value : "");
        printf("  %-26s %s\n", left, option->help);
    }
    if (command->takes_set)
        printf("  %-26s %s\n", "--set KEY=VALUE",
               "set a configuration key; repeatable (spillway help config lists all)");
    if (command->help != NULL)
        printf("\n%s", command->help);
}

static void print_help(void)
{
    printf("usage: spillway COMMAND [ARGUMENTS]\n\n"
           "Fine-tunes models that are too big for the GPUs at hand.\n\n");
    for (int i = 0; sw_commands[i] != NULL; i++)
        printf("  %-10s %s\n", sw_commands[i]->name, sw_commands[i]->summary);
    printf(
        "\nspillway COMMAND --help says more; spillway help config lists every configuration key.\n"
        "Exit status: 0 done, 1 failed, 2 bad usage or configuration, 3 does not fit,\n"
        "75 stopped early with a checkpoint (start again with --resume auto).\n");
}

static int help(const char *topic, const char *form)
{
    if (topic == NULL) {
        print_help();
        return 0;
    }
    if (strcmp(topic, "config") == 0) {
        struct sw_text text = {0};
        if (form != NULL && strcmp(form, "--markdown") == 0)
            sw_config_help_markdown(&text);
        else
            sw_config_help(&text);
        fputs(text.bytes != NULL ? text.bytes : "", stdout);
        free(text.bytes);
        return 0;
    }
    const struct sw_command *command = find_command(topic);
    if (command == NULL) {
        fprintf(stderr, "spillway: there is no help on %s; did you mean %s?\n", topic,
                nearest_command(topic));
        return 2;
    }
    print_command_help(command);
    return 0;
}

/* ---- arguments ---- */

static sw_code unknown_option(const struct sw_command *command, const char *argument,
                              struct sw_err *err)
{
    struct sw_text known = {0};
    for (int i = 0; command->options[i].name != NULL; i++)
        sw_text_add(&known, " --%s", command->options[i].name);
    if (command->takes_set)
        sw_text_add(&known, " --set");
    sw_code code = SW_FAIL(err, SW_E_USAGE, "%s has no option %s; it has%s", command->name,
                           argument, known.bytes != NULL ? known.bytes : " none");
    free(known.bytes);
    return code;
}

static sw_code add_set(struct sw_cli_args *args, const char *value, struct sw_err *err)
{
    if (args->set_count == SW_CLI_SETS)
        return SW_FAIL(err, SW_E_USAGE, "more than %d --set", SW_CLI_SETS);
    args->sets[args->set_count++] = value;
    return SW_OK;
}

/* One "--name": its value is behind '=' or the next argument. */
static sw_code take_option(const struct sw_command *command, int argc, char **argv, int *at,
                           struct sw_cli_args *args, struct sw_err *err)
{
    const char *name = argv[*at] + 2, *equals = strchr(name, '=');
    size_t bytes = equals != NULL ? (size_t)(equals - name) : strlen(name);
    bool set = command->takes_set && bytes == 3 && memcmp(name, "set", 3) == 0;
    int index = find_option(command, name, bytes);
    if (index < 0 && !set)
        return unknown_option(command, argv[*at], err);
    bool flag = !set && command->options[index].value == NULL;
    const char *value = equals != NULL ? equals + 1 : NULL;
    if (flag && value != NULL)
        return SW_FAIL(err, SW_E_USAGE, "--%.*s takes no value", (int)bytes, name);
    if (!flag && value == NULL) {
        if (*at + 1 == argc)
            return SW_FAIL(err, SW_E_USAGE, "--%s needs a value", name);
        value = argv[++*at];
    }
    if (set)
        return add_set(args, value, err);
    if (args->values[index] != NULL)
        return SW_FAIL(err, SW_E_USAGE, "--%.*s is given twice", (int)bytes, name);
    args->values[index] = flag ? "" : value;
    return SW_OK;
}

static sw_code parse(const struct sw_command *command, int argc, char **argv,
                     struct sw_cli_args *args, struct sw_err *err)
{
    bool options = true;
    for (int i = 0; i < argc; i++) {
        sw_code code = SW_OK;
        if (options && strcmp(argv[i], "--") == 0) {
            options = false;
        } else if (options && strncmp(argv[i], "--", 2) == 0) {
            code = take_option(command, argc, argv, &i, args, err);
        } else if (options && argv[i][0] == '-' && argv[i][1] != '\0') {
            code = unknown_option(command, argv[i], err);
        } else if (command->second != NULL && args->positional != NULL && args->second == NULL) {
            args->second = argv[i];
        } else if (command->positional == NULL || args->positional != NULL) {
            code = SW_FAIL(err, SW_E_USAGE, "%s: what is %s for? (spillway %s --help)",
                           command->name, argv[i], command->name);
        } else {
            args->positional = argv[i];
        }
        if (code != SW_OK)
            return code;
    }
    if (command->positional_needed && args->positional == NULL)
        return SW_FAIL(err, SW_E_USAGE, "%s needs %s (spillway %s --help)", command->name,
                       command->positional, command->name);
    for (int i = 0; i < SW_CLI_NEEDED && command->needed[i] != NULL; i++)
        if (sw_cli_value(command, args, command->needed[i]) == NULL)
            return SW_FAIL(err, SW_E_USAGE, "%s needs --%s (spillway %s --help)", command->name,
                           command->needed[i], command->name);
    return SW_OK;
}

static bool wants_help(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

/* Whoever read standard output has enough (`| head`): that is no failure. */
static bool reader_left(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&out, 1, 0) > 0 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

/* Exit status of a command whose name is argv[1]. */
static int run_command(int argc, char **argv)
{
    const char *name = argv[1];
    if (strcmp(name, "help") == 0)
        return help(argc > 2 ? argv[2] : NULL, argc > 3 ? argv[3] : NULL);
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return help(NULL, NULL);
    if (strcmp(name, "--version") == 0) {
        printf("spillway %s\n", PACKAGE_VERSION);
        return 0;
    }
    const struct sw_command *command = find_command(name);
    if (command == NULL) {
        fprintf(stderr, "spillway: there is no command %s; did you mean %s? (spillway help)\n",
                name, nearest_command(name));
        return 2;
    }
    if (wants_help(argc - 2, argv + 2)) {
        print_command_help(command);
        return 0;
    }
    struct sw_err err;
    struct sw_cli_args args = {0};
    sw_err_init(&err);
    sw_code code = parse(command, argc - 2, argv + 2, &args, &err);
    if (code == SW_OK)
        code = command->run(&args, &err);
    if (code == SW_OK || (err.os_errno == EPIPE && reader_left()))
        return 0;
    fprintf(stderr, "spillway: %s\n", err.text);
    return sw_code_exit_status(code);
}

/* A file of ours must not become standard output because that was closed. */
static void keep_standard_descriptors(void)
{
    int descriptor;
    do
        descriptor = open("/dev/null", O_RDWR);
    while (descriptor >= 0 && descriptor <= STDERR_FILENO);
    if (descriptor >= 0)
        close(descriptor);
}

int sw_main(int argc, char **argv)
{
    keep_standard_descriptors();
    (void)signal(SIGPIPE, SIG_IGN); /* a reader that left is an error of write() */
    (void)signal(SIGXFSZ, SIG_IGN); /* and so is a file that may not grow */
    if (argc < 2) {
        fputs("spillway: a command is needed; spillway --help lists them\n", stderr);
        return 2;
    }
    int status = run_command(argc, argv);
    if ((fflush(stdout) != 0 || ferror(stdout)) && !reader_left()) {
        if (status == 0) /* else it was said */
            perror("spillway: cannot write to standard output");
        status = status != 0 ? status : 1;
    }
    return status;
}
