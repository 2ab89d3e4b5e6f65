/*
 * How a kernel asks to be inlined and unrolled, once a shape. Instrumented, that takes the compiler
 * many minutes a file: a sanitizer's build keeps functions and loops as they are written.
 */
#ifndef PIGPEN_COMMON_BASE_INLINE_H
#define PIGPEN_COMMON_BASE_INLINE_H

#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define PP_INLINE static inline
#define PP_UNROLL
#else
#define PP_INLINE static inline __attribute__((always_inline))
#define PP_UNROLL _Pragma("clang loop unroll(full)")
#endif

#endif
