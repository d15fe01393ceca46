/* reap FIFO COMMAND...: runs a program that leaves a daemon behind, and measures both apart.
 *
 * Writes two lines into FIFO, each with seconds of processor time, user and system: of the command and the children for which it waited, when it
 * ends; and of all processes that it has left behind, when the last of these ends. Ends with the command's status. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static double seconds(const struct rusage *usage) {
    return usage->ru_utime.tv_sec + usage->ru_stime.tv_sec + (usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    /* What a child leaves behind becomes a child of this process. */
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0) { perror("reap: prctl"); return 2; }
    pid_t command = fork();
    if (command < 0) { perror("reap: fork"); return 2; }
    if (!command) { execvp(argv[2], argv + 2); perror(argv[2]); _exit(127); }
    FILE *out = fopen(argv[1], "w");
    if (!out) { perror(argv[1]); return 2; }
    int status, of_command = 1 << 8;
    double left_behind = 0;
    struct rusage usage;
    for (pid_t ended; (ended = wait4(-1, &status, 0, &usage)) > 0 || errno == EINTR;) {
        if (ended < 0) continue;
        if (ended == command) { of_command = status; fprintf(out, "%.6f\n", seconds(&usage)); fflush(out); }
        else left_behind += seconds(&usage);
    }
    fprintf(out, "%.6f\n", left_behind);
    return fclose(out) || !WIFEXITED(of_command) ? 1 : WEXITSTATUS(of_command);
}
