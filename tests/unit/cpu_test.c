/*
 * Instruction sets: names, and PIGPEN_ISA, which is read once and hence in a process of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/run/cpu.h"

static void names_and_values_agree(void **state)
{
    (void)state;
    for (int at = PP_ISA_SCALAR; at <= PP_ISA_AVX512BF16; ++at) {
        enum pp_isa isa = (enum pp_isa)99;
        assert_int_equal(pp_isa_parse(pp_isa_name((enum pp_isa)at), &isa), PP_OK);
        assert_int_equal(isa, at);
    }
    enum pp_isa isa = PP_ISA_AVX2;
    assert_int_equal(pp_isa_parse("AVX2", &isa), PP_INVALID_ARGUMENT);
    assert_int_equal(pp_isa_parse("", &isa), PP_INVALID_ARGUMENT);
    assert_int_equal(isa, PP_ISA_AVX2);
}

/* What pp_isa_get gives in a fresh process with this PIGPEN_ISA. */
static enum pp_isa isa_with(const char *wanted)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        pp_log_configure(PP_LOG_OFF, PP_LOG_TEXT);
        if (wanted != NULL) {
            setenv("PIGPEN_ISA", wanted, 1);
        } else {
            unsetenv("PIGPEN_ISA");
        }
        _exit((int)pp_isa_get());
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return (enum pp_isa)WEXITSTATUS(status);
}

static void a_lower_path_can_be_forced(void **state)
{
    (void)state;
    enum pp_isa best = isa_with(NULL);
    for (int at = PP_ISA_SCALAR; at <= (int)best; ++at) {
        assert_int_equal(isa_with(pp_isa_name((enum pp_isa)at)), at);
    }
}

static void what_this_machine_lacks_or_nobody_knows_gives_the_best(void **state)
{
    (void)state;
    enum pp_isa best = isa_with(NULL);
    assert_int_equal(isa_with("sse9"), best);
    assert_int_equal(isa_with(""), best);
    for (int at = (int)best; at <= PP_ISA_AVX512BF16; ++at) {
        assert_int_equal(isa_with(pp_isa_name((enum pp_isa)at)), best);
    }
}

/* Last: it fills the cache of this process. */
static void the_used_one_is_never_above_the_best(void **state)
{
    (void)state;
    assert_true(pp_isa_get() <= pp_isa_best());
    print_message("best %s, used %s\n", pp_isa_name(pp_isa_best()), pp_isa_name(pp_isa_get()));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_values_agree),
        cmocka_unit_test(a_lower_path_can_be_forced),
        cmocka_unit_test(what_this_machine_lacks_or_nobody_knows_gives_the_best),
        cmocka_unit_test(the_used_one_is_never_above_the_best),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
