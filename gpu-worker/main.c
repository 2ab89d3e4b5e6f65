/*
 * gpu-worker: runs a language model whose keys and values live on attention nodes. The first
 * argument names what to do; each program has its own options and its own --help.
 */
#include <stdio.h>
#include <string.h>

#include "gpu-worker/api/eval.h"
#include "gpu-worker/api/generate.h"

struct worker_program {
    const char *name;
    const char *full_name;
    const char *summary;
    int (*run)(int argc, char **argv);
};

static const struct worker_program worker_programs[] = {
    {"generate", "gpu-worker generate", "answer one prompt from the shell", gw_generate_main},
    {"eval", "gpu-worker eval", "measure the quality of estimators on a text", gw_eval_main},
};

static void worker_usage(FILE *out)
{
    fprintf(out,
            "gpu-worker %s runs a language model whose keys and values live on attention "
            "nodes.\n\nusage: gpu-worker PROGRAM [OPTION]...\n\n",
            PP_VERSION);
    for (size_t i = 0; i < sizeof(worker_programs) / sizeof(worker_programs[0]); i++) {
        fprintf(out, "  %-10s %s\n", worker_programs[i].name, worker_programs[i].summary);
    }
    fprintf(out, "\n`gpu-worker PROGRAM --help` tells its options.\n");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        worker_usage(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        worker_usage(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("gpu-worker %s\n", PP_VERSION);
        return 0;
    }
    for (size_t i = 0; i < sizeof(worker_programs) / sizeof(worker_programs[0]); i++) {
        if (strcmp(argv[1], worker_programs[i].name) == 0) {
            return worker_programs[i].run(argc - 1, argv + 1);
        }
    }
    fprintf(stderr, "gpu-worker: there is no program '%s'\n\n", argv[1]);
    worker_usage(stderr);
    return 2;
}
