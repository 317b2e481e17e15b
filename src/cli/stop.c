#include "cli/stop.h"

#include "base/err.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t stop_signals, ends_at_once;
static const char *volatile stop_words;

static void on_signal(int number)
{
    if (stop_signals > 0 && number == SIGHUP) /* comes twice: from the shell and the system */
        return;
    if (stop_signals > 0)
        _exit(128 + number);
    const char *words = stop_words;
    ssize_t ignored = write(STDERR_FILENO, words, strlen(words));
    (void)ignored;
    if (ends_at_once)
        _exit(sw_code_exit_status(SW_E_STOPPED));
    stop_signals = 1;
}

static void watch(const char *words, bool at_once)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    stop_words = words;
    ends_at_once = at_once;
    sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    struct sigaction before; /* nohup ignores it */
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        (void)sigaction(SIGHUP, &action, NULL);
}

void sw_stop_end_at_once(const char *words)
{
    watch(words, true);
}

void sw_stop_watch(const char *words)
{
    watch(words, false);
}

bool sw_stop_asked(void)
{
    return stop_signals > 0;
}
