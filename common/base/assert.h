/*
 * Assertions for programmer's errors, on in every build. Never on a peer's input: that returns a
 * status. A failed assertion prints where and aborts.
 */
#ifndef PIGPEN_COMMON_BASE_ASSERT_H
#define PIGPEN_COMMON_BASE_ASSERT_H

#ifdef __cplusplus
#define PP_STATIC_ASSERT(condition, text) static_assert(condition, text)
#else
#define PP_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif

__attribute__((noreturn, cold)) void pp_assert_fail(const char *condition, const char *file,
                                                    int line);

#define PP_ASSERT(condition)                                                                       \
    (__builtin_expect(!!(condition), 1) ? (void)0 : pp_assert_fail(#condition, __FILE__, __LINE__))

#endif
