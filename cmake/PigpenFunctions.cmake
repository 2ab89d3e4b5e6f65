# How folders become libraries, and test files become tests.

# Flags for files that are named for their instruction set (or for its absence).
function(pigpen_isa_flags)
    foreach(file IN LISTS ARGN)
        if(file MATCHES "_avx512bf16\\.c$")
            set(flags -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512cd -mavx512vnni
                -mavx512vbmi -mavx512vbmi2 -mavx512bf16 -mfma -mf16c -mbmi -mbmi2 -mlzcnt)
        elseif(file MATCHES "_avx512\\.c$")
            set(flags -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512cd -mfma -mf16c -mbmi
                -mbmi2 -mlzcnt)
        elseif(file MATCHES "_avx2\\.c$")
            set(flags -mavx2 -mfma -mf16c -mbmi -mbmi2 -mlzcnt -Wno-psabi)
        elseif(file MATCHES "_vpclmul\\.c$")
            set(flags -mavx512f -mavx512dq -mvpclmulqdq -mpclmul -msse4.2)
        elseif(file MATCHES "_sse42\\.c$")
            set(flags -msse4.2)
        elseif(file MATCHES "_scalar\\.c$")
            set(flags -fno-vectorize -fno-slp-vectorize)
        else()
            continue()
        endif()
        # Inner loops are optimised in debug builds too: tests of statistics need their speed.
        set_property(SOURCE ${file} APPEND PROPERTY COMPILE_OPTIONS ${flags}
            $<$<CONFIG:Debug>:-O2>)
    endforeach()
endfunction()

# pigpen_layer(NAME [DEPS library...] [EXCLUDE file...]): every .c file of this folder but main.c
# and the excluded ones as one library.
function(pigpen_layer name)
    cmake_parse_arguments(LAYER "" "" "DEPS;EXCLUDE" ${ARGN})
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.c)
    list(FILTER sources EXCLUDE REGEX "/main\\.c$")
    foreach(file IN LISTS LAYER_EXCLUDE)
        list(REMOVE_ITEM sources ${CMAKE_CURRENT_SOURCE_DIR}/${file})
    endforeach()
    if(NOT sources)
        add_library(${name} INTERFACE)
        target_link_libraries(${name} INTERFACE pigpen_flags ${LAYER_DEPS})
        return()
    endif()
    pigpen_isa_flags(${sources})
    add_library(${name} STATIC ${sources})
    target_link_libraries(${name} PUBLIC pigpen_flags ${LAYER_DEPS})
endfunction()

# pigpen_test(NAME SOURCE LABEL): a CMocka program linked against every library of the project.
function(pigpen_test name source label)
    add_executable(${name} ${source})
    target_link_libraries(${name} PRIVATE pigpen_everything PkgConfig::CMOCKA m)
    target_compile_definitions(${name} PRIVATE PP_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT 1800)
endfunction()

# pigpen_script_tests(LABEL SECONDS): every NAME_test.py of the folder is the test LABEL_NAME_test, run
# by the Python that PIGPEN_PYTHON names. They find the built programs by PIGPEN_BUILD. One that ends
# with 77 could not run here, and has printed why.
function(pigpen_script_tests label seconds)
    set(python "$ENV{PIGPEN_PYTHON}")
    if(NOT python)
        set(python python3)
    endif()
    file(GLOB scripts CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.py)
    foreach(script IN LISTS scripts)
        get_filename_component(name ${script} NAME_WE)
        add_test(NAME ${label}_${name} COMMAND ${python} ${script})
        set_tests_properties(${label}_${name} PROPERTIES LABELS ${label} TIMEOUT ${seconds}
                             SKIP_RETURN_CODE 77
                             ENVIRONMENT "PIGPEN_BUILD=${PROJECT_BINARY_DIR}")
    endforeach()
endfunction()

# pigpen_cuda_images(SOURCE HEADER GETTER FOLDER [kernel.cu...]): nvcc compiles each .cu file to
# FOLDER/NAME.fatbin, and ptxas reports to FOLDER/NAME.ptxas. The C file SOURCE, which a target of the
# same folder takes, has them as bytes of the program; GETTER, which HEADER declares, gives them.
function(pigpen_cuda_images source header getter folder)
    set(text "")
    set(list "")
    set(files "")
    set(code "")
    foreach(arch IN LISTS PIGPEN_CUDA_ARCHITECTURES)
        list(APPEND code -gencode arch=compute_${arch},code=sm_${arch})
    endforeach()
    list(GET PIGPEN_CUDA_ARCHITECTURES -1 newest)
    list(APPEND code -gencode arch=compute_${newest},code=compute_${newest})
    file(MAKE_DIRECTORY ${folder})
    foreach(kernel IN LISTS ARGN)
        get_filename_component(name ${kernel} NAME_WE)
        set(image ${folder}/${name}.fatbin)
        add_custom_command(
            OUTPUT ${image}
            COMMAND sh ${PROJECT_SOURCE_DIR}/cmake/nvcc-image ${folder}/${name}
                ${PIGPEN_NVCC} -std=c++17 -O3 -lineinfo -I${PROJECT_SOURCE_DIR}
                -Werror all-warnings -Xptxas -v,-warn-spills,-Werror ${code} -fatbin
                -MD -MF ${image}.d -o ${image} ${kernel}
            DEPENDS ${kernel} ${PROJECT_SOURCE_DIR}/cmake/nvcc-image
            DEPFILE ${image}.d
            COMMENT "Compiling kernels of ${name}.cu" VERBATIM)
        list(APPEND files ${image})
        string(APPEND text
            "__asm__(\".section .rodata\\n.balign 64\\nimage_${name}: .incbin \\\"${image}\\\"\\n"
            ".balign 4\\n.long 0\\n.previous\\n\");\n"
            "extern const unsigned char image_${name}[];\n")
        string(APPEND list "image_${name}, ")
    endforeach()
    list(LENGTH files count)
    if(count EQUAL 0)
        set(list NULL)
    endif()
    configure_file(${PROJECT_SOURCE_DIR}/gpu-worker/device/cuda/images.c.in ${source} @ONLY)
    set_source_files_properties(${source} PROPERTIES OBJECT_DEPENDS "${files}")
endfunction()

# pigpen_version(TARGET): PP_VERSION and PP_COMMIT as texts. Without git the commit is "unknown".
set(pigpen_commit "${PIGPEN_COMMIT}")
if(NOT pigpen_commit)
    execute_process(
        COMMAND git -C ${PROJECT_SOURCE_DIR} rev-parse --short=12 HEAD
        OUTPUT_VARIABLE pigpen_commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT pigpen_commit)
    set(pigpen_commit unknown)
endif()
function(pigpen_version target)
    target_compile_definitions(${target} PRIVATE
        PP_VERSION="${PROJECT_VERSION}" PP_COMMIT="${pigpen_commit}")
endfunction()
