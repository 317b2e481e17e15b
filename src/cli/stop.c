#include "cli/stop.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t stop_signals;
static const char *stop_words;

static void on_signal(int number)
{
    if (stop_signals > 0)
        _exit(128 + number);
    stop_signals = 1;
    ssize_t ignored = write(STDERR_FILENO, stop_words, strlen(stop_words));
    (void)ignored;
}

void sw_stop_watch(const char *words)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    stop_words = words;
    sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
}

bool sw_stop_asked(void)
{
    return stop_signals > 0;
}
