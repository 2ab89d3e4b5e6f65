# Options, and the flags that every target of the project gets.
set(PIGPEN_SANITIZE "" CACHE STRING "empty, address (with undefined) or thread")
option(PIGPEN_TESTS "build the tests and benches" ON)
option(PIGPEN_FUZZ "build the libFuzzer targets instead of the tests" OFF)
set(PIGPEN_COMMIT "" CACHE STRING "commit that the programs tell; empty: git is asked")
option(PIGPEN_CUDA "compile the kernels of the CUDA device (needs nvcc)" OFF)
set(PIGPEN_CUDA_ARCHITECTURES 80 89 90 CACHE STRING
    "compute capabilities that kernels are compiled for; of the last one as PTX too")
option(PIGPEN_WERROR "treat warnings as errors" ON)

if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(WARNING "kernels are tuned for clang: other compilers build slower ones")
endif()

add_library(pigpen_flags INTERFACE)
target_compile_options(pigpen_flags INTERFACE
    -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wpointer-arith
    -Wcast-qual -Wundef -Wno-format-zero-length -fno-common -fno-math-errno -fno-strict-aliasing -ffp-contract=off)
if(PIGPEN_WERROR)
    target_compile_options(pigpen_flags INTERFACE -Werror)
endif()
target_compile_definitions(pigpen_flags INTERFACE _GNU_SOURCE)
target_include_directories(pigpen_flags INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})

if(PIGPEN_SANITIZE STREQUAL "address")
    add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined
        -fno-omit-frame-pointer)
    add_link_options(-fsanitize=address,undefined)
elseif(PIGPEN_SANITIZE STREQUAL "thread")
    add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
    add_link_options(-fsanitize=thread)
elseif(NOT PIGPEN_SANITIZE STREQUAL "")
    message(FATAL_ERROR "PIGPEN_SANITIZE is '${PIGPEN_SANITIZE}': use address or thread")
endif()
if(PIGPEN_FUZZ)
    add_compile_options(-fsanitize=fuzzer-no-link,address,undefined)
    add_link_options(-fsanitize=address,undefined)
endif()
