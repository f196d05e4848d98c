#include "progress.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static _Thread_local int is_quiet;
static int live_shown;
static double last_line = -1e9;
static _Atomic int stop_signal; /* lock-free: written by the handler, read by all ranks */

void mg_progress_quiet(int quiet) { is_quiet = quiet; }

static int on_terminal(void)
{
    static int known = -1;
    if (known < 0)
        known = isatty(STDERR_FILENO);
    return known;
}

double mg_progress_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void mg_progress_end(void)
{
    if (is_quiet)
        return;
    if (live_shown)
        fputs("\r\033[K", stderr);
    live_shown = 0;
}

void mg_progress_say(const char *format, ...)
{
    va_list values;
    if (is_quiet)
        return;
    mg_progress_end();
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fputc('\n', stderr);
}

static int terminal_columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) || size.ws_col < 20 ? 80 : size.ws_col;
}

void mg_progress_show(int important, const char *format, ...)
{
    const double live_seconds = 0.1, log_seconds = 10;
    char line[512];
    if (is_quiet)
        return;
    double now = mg_progress_seconds(), since = now - last_line;
    if (!important && since < (on_terminal() ? live_seconds : log_seconds))
        return;
    last_line = now;
    va_list values;
    va_start(values, format);
    vsnprintf(line, sizeof line, format, values);
    va_end(values);
    if (!on_terminal()) {
        fprintf(stderr, "%s\n", line);
        return;
    }
    fprintf(stderr, "\r%.*s\033[K", terminal_columns() - 1, line);
    live_shown = 1;
}

const char *mg_progress_duration(double seconds)
{
    static _Thread_local char text[32];
    if (seconds < 100)
        snprintf(text, sizeof text, "%.1f s", seconds);
    else if (seconds < 3600)
        snprintf(text, sizeof text, "%d min %02d s", (int)seconds / 60, (int)seconds % 60);
    else
        snprintf(text, sizeof text, "%lld h %02d min", (long long)(seconds / 3600), (int)(seconds / 60) % 60);
    return text;
}

static void note_stop(int signal_number)
{
    stop_signal = signal_number;
    signal(signal_number, SIG_DFL);
}

void mg_progress_catch_stop(void)
{
    struct sigaction action = {.sa_handler = note_stop, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int mg_progress_stop_wanted(void) { return stop_signal; }
