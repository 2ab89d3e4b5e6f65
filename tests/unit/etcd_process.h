/*
 * An etcd of a test's own: one member, a folder under /tmp, a free port of loopback. Killed with
 * the test, whatever becomes of it.
 */
#ifndef PIGPEN_TESTS_UNIT_ETCD_PROCESS_H
#define PIGPEN_TESTS_UNIT_ETCD_PROCESS_H

#include <arpa/inet.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct etcd_process {
    pid_t pid;
    char folder[64], endpoint[32];
};

/* A port that was free a moment ago. */
static inline int etcd_free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int socket_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(socket_fd, (struct sockaddr *)&address, bytes), 0);
    assert_int_equal(getsockname(socket_fd, (struct sockaddr *)&address, &bytes), 0);
    close(socket_fd);
    return ntohs(address.sin_port);
}

static inline void etcd_run(struct etcd_process *etcd)
{
    char client[64], data[96];
    snprintf(client, sizeof(client), "http://%s", etcd->endpoint);
    snprintf(data, sizeof(data), "%s/data", etcd->folder);
    pid_t parent = getpid();
    etcd->pid = fork();
    assert_true(etcd->pid >= 0);
    if (etcd->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        int quiet = open("/dev/null", O_WRONLY);
        if (getppid() != parent || quiet < 0) {
            _exit(1);
        }
        (void)dup2(quiet, STDOUT_FILENO);
        (void)dup2(quiet, STDERR_FILENO);
        (void)setenv("ETCD_UNSUPPORTED_ARCH", "", 1);
        execlp("etcd", "etcd", "--data-dir", data, "--listen-client-urls", client,
               "--advertise-client-urls", client, "--listen-peer-urls", "http://127.0.0.1:0",
               "--heartbeat-interval=10", "--election-timeout=100", (char *)NULL);
        _exit(127);
    }
}

static inline void etcd_start(struct etcd_process *etcd)
{
    memset(etcd, 0, sizeof(*etcd));
    snprintf(etcd->folder, sizeof(etcd->folder), "/tmp/pigpen_etcd.XXXXXX");
    assert_non_null(mkdtemp(etcd->folder));
    snprintf(etcd->endpoint, sizeof(etcd->endpoint), "127.0.0.1:%d", etcd_free_port());
    etcd_run(etcd);
}

static inline void etcd_kill(struct etcd_process *etcd)
{
    (void)kill(etcd->pid, SIGKILL);
    (void)waitpid(etcd->pid, NULL, 0);
    etcd->pid = 0;
}

static inline int etcd_remove_one(const char *path, const struct stat *about, int kind,
                                  struct FTW *where)
{
    (void)about;
    (void)kind;
    (void)where;
    return remove(path);
}

static inline void etcd_stop(struct etcd_process *etcd)
{
    if (etcd->pid > 0) {
        etcd_kill(etcd);
    }
    (void)nftw(etcd->folder, etcd_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

#endif
