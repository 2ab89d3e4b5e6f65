/*
 * The states of a node, and the watchdog: a self test through exec every ten seconds. A node whose
 * exec does not come back in time calls itself not ready, though its rpc thread still answers.
 */
#include "attn-node/service/internal.h"
#include "common/base/log.h"

static const char *const state_names[] = {"STARTING", "SERVING", "DRAINING", "STOPPED"};

enum an_service_state an_service_state(const struct an_service *service)
{
    return (enum an_service_state)atomic_load(&service->state);
}

bool an_service_ready(const struct an_service *service, const char **why_out)
{
    uint64_t late_us = atomic_load(&service->self_test_late_us);
    *why_out = "ok";
    if (an_service_state(service) != AN_SERVING) {
        *why_out = state_names[an_service_state(service)];
    } else if (!atomic_load(&service->self_test_ok)) {
        *why_out = "the last self test failed";
    } else if (late_us != 0 && an_service_now(service) > late_us) {
        *why_out = "the self test is late: the exec thread is stuck or far behind";
    } else {
        return true;
    }
    return false;
}

void an_state_set(struct an_service *service, enum an_service_state state)
{
    enum an_service_state before = an_service_state(service);
    if (before == state || before == AN_STOPPED) {
        return;
    }
    atomic_store(&service->state, (int)state);
    pp_stat_set(service->metrics.draining, state == AN_DRAINING ? 1 : 0);
    PP_LOG_INFOF("service", "state changed", "from=%s to=%s", state_names[before],
                 state_names[state]);
    an_health_publish(service);
}

void an_service_ends_at(struct an_service *service, uint64_t until_us)
{
    atomic_store(&service->drain_until_us, until_us);
}

void an_service_drain(struct an_service *service)
{
    atomic_store(&service->wanted, AN_DRAINING);
}

void an_service_resume(struct an_service *service)
{
    atomic_store(&service->wanted, AN_SERVING);
}

void an_service_stop(struct an_service *service)
{
    atomic_store(&service->wanted, AN_STOPPED);
}

void an_self_test_done(struct an_service *service, const struct an_job *job)
{
    const struct an_self_test_args *args = &job->self_test;
    bool ok = job->status == PP_OK && args->count > 0;
    for (uint32_t index = 0; index < args->count; ++index) {
        if (!args->checks[index].ok) {
            ok = false;
            PP_LOG_ERRORF("service", "self test failed", "check=%s detail=\"%s\"",
                          args->checks[index].name, args->checks[index].detail);
        }
    }
    atomic_store(&service->self_test_ok, ok);
    pp_stat_set(service->metrics.self_test_ok, ok ? 1 : 0);
    if (ok && an_service_state(service) == AN_STARTING) {
        an_state_set(service, AN_SERVING);
    }
}

static void self_test_begin(struct an_service *service, uint64_t now_us)
{
    uint64_t period_us = service->config.self_test_us;
    service->self_test_due_us = now_us + (period_us != 0 ? period_us : AN_SELF_TEST_PERIOD_US);
    if (service->self_test_began_us != 0) {
        return; /* the last one has not come back */
    }
    struct an_request *request = an_pool_take_request(service->pool, 0);
    if (request == NULL) {
        return;
    }
    request->service = service;
    request->job.kind = AN_JOB_SELF_TEST;
    request->job.received_us = now_us;
    if (an_exec_submit(service->config.exec, &request->job) != PP_OK) {
        an_request_end(request);
        return;
    }
    service->self_test_began_us = now_us;
    atomic_store(&service->self_test_late_us, now_us + AN_SELF_TEST_TIMEOUT_US);
}

void an_state_poll(struct an_service *service, uint64_t now_us)
{
    int wanted = atomic_exchange(&service->wanted, -1);
    if (wanted >= 0) {
        an_state_set(service, (enum an_service_state)wanted);
    }
    if (now_us >= service->self_test_due_us && an_service_state(service) != AN_STOPPED) {
        self_test_begin(service, now_us);
    }
    const char *why;
    bool ready = an_service_ready(service, &why);
    if ((pp_stat_value(service->metrics.ready) != 0) != ready) {
        pp_stat_set(service->metrics.ready, ready ? 1 : 0);
        an_health_publish(service);
    }
}
