# One function, megagraph_library(), makes a library of this house: its target megagraph::<name>, the error line and
# the memory hook that every library has (cmake/library.*.in), its install rules, its .pc file and its part of the
# CMake package. A library is built from the top or alone (cmake -S libattn); both give the same install tree.

include_guard(GLOBAL)
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(MEGAGRAPH_CMAKE_DIR ${CMAKE_CURRENT_LIST_DIR})
set(MEGAGRAPH_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/megagraph)
option(MEGAGRAPH_OPENMP "Use OpenMP threads" ON)
set(MEGAGRAPH_MPI AUTO CACHE STRING "Processes of an MPI job as ranks: ON, OFF, or AUTO: where MPI is found")
set_property(CACHE MEGAGRAPH_MPI PROPERTY STRINGS AUTO ON OFF)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release unless chosen" FORCE)
endif()

# Compiles sources for plain C11 with the house's warnings.
function(megagraph_target_defaults target)
    target_compile_features(${target} PUBLIC c_std_11)
    set_target_properties(${target} PROPERTIES C_VISIBILITY_PRESET hidden C_EXTENSIONS ON)
    target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes
                           -fno-math-errno)
endfunction()

# What an installed static library says of OpenMP; a shared one has it already. A project without C has that of C++.
set(MEGAGRAPH_FIND_OPENMP [[
if(NOT TARGET OpenMP::OpenMP_C)
    get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
    if("C" IN_LIST languages)
        find_dependency(OpenMP COMPONENTS C)
    else()
        find_dependency(OpenMP COMPONENTS CXX)
        add_library(OpenMP::OpenMP_C INTERFACE IMPORTED)
        target_link_libraries(OpenMP::OpenMP_C INTERFACE OpenMP::OpenMP_CXX)
    endif()
endif()
]])

# megagraph_find_mpi(): sets MPI_C_FOUND as MEGAGRAPH_MPI wishes, in the caller's scope.
macro(megagraph_find_mpi)
    if(MEGAGRAPH_MPI STREQUAL "AUTO")
        find_package(MPI QUIET COMPONENTS C)
    elseif(MEGAGRAPH_MPI)
        find_package(MPI REQUIRED COMPONENTS C)
    else()
        set(MPI_C_FOUND FALSE)
    endif()
endmacro()

# megagraph_library(<name> SOURCES ... HEADERS ... [NEEDS <megagraph libraries>] [SYSTEM <-l names>] [OPENMP] [MPI])
function(megagraph_library name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "OPENMP;MPI" "" "SOURCES;HEADERS;NEEDS;SYSTEM")
    set(target megagraph_${name})

    set(LIB ${name})
    string(TOUPPER ${name} LIB_UPPER)
    configure_file(${MEGAGRAPH_CMAKE_DIR}/library.h.in generated/library.h @ONLY)
    configure_file(${MEGAGRAPH_CMAKE_DIR}/library.c.in generated/library.c @ONLY)

    add_library(${target} ${arg_SOURCES} ${CMAKE_CURRENT_BINARY_DIR}/generated/library.c)
    add_library(megagraph::${name} ALIAS ${target})
    list(TRANSFORM arg_HEADERS PREPEND include/megagraph/)
    target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS include FILES ${arg_HEADERS})
    target_include_directories(${target} PRIVATE src ${CMAKE_CURRENT_BINARY_DIR}/generated)
    megagraph_target_defaults(${target})
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} OUTPUT_NAME megagraph-${name}
                          VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
                          POSITION_INDEPENDENT_CODE ON VERIFY_INTERFACE_HEADER_SETS ON)

    # Third-party libraries are linked by name: what is installed stays relocatable.
    foreach(system IN LISTS arg_SYSTEM)
        find_library(MEGAGRAPH_LIB_${system} ${system})
        if(NOT MEGAGRAPH_LIB_${system})
            message(FATAL_ERROR "lib${name} needs lib${system}, which was not found: README.md lists the packages")
        endif()
    endforeach()
    target_link_libraries(${target} PRIVATE ${arg_SYSTEM} m)
    set(private_libs ${arg_SYSTEM} m)
    list(TRANSFORM private_libs PREPEND -l)

    set(PACKAGE_DEPENDENCY "")
    if(arg_OPENMP AND MEGAGRAPH_OPENMP)
        find_package(OpenMP REQUIRED COMPONENTS C)
        target_link_libraries(${target} PRIVATE OpenMP::OpenMP_C)
        list(APPEND private_libs ${OpenMP_C_FLAGS})
        get_target_property(type ${target} TYPE)
        if(type STREQUAL "STATIC_LIBRARY")
            string(APPEND PACKAGE_DEPENDENCY "${MEGAGRAPH_FIND_OPENMP}")
        endif()
    else()
        target_compile_options(${target} PRIVATE -Wno-unknown-pragmas)
    endif()
    if(arg_MPI)
        target_link_libraries(${target} PRIVATE MPI::MPI_C)
        list(APPEND private_libs ${MPI_C_LIBRARIES})
        string(APPEND PACKAGE_DEPENDENCY "find_dependency(MPI COMPONENTS C)\n")
    endif()

    foreach(need IN LISTS arg_NEEDS)
        if(NOT TARGET megagraph::${need})
            find_package(megagraph REQUIRED COMPONENTS ${need})  # built alone, against an installed one
        endif()
        target_link_libraries(${target} PUBLIC megagraph::${need})
    endforeach()

    install(TARGETS ${target} EXPORT megagraph-${name} FILE_SET HEADERS)
    install(EXPORT megagraph-${name} NAMESPACE megagraph:: FILE megagraph-${name}-targets.cmake
            DESTINATION ${MEGAGRAPH_PACKAGE_DIR})

    set(NEEDS ${arg_NEEDS})
    configure_file(${MEGAGRAPH_CMAKE_DIR}/component.cmake.in generated/megagraph-${name}.cmake @ONLY)
    configure_file(${MEGAGRAPH_CMAKE_DIR}/package.cmake.in generated/megagraph-config.cmake COPYONLY)
    write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/generated/megagraph-config-version.cmake
                                     COMPATIBILITY SameMinorVersion)
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/generated/megagraph-${name}.cmake
                  ${CMAKE_CURRENT_BINARY_DIR}/generated/megagraph-config.cmake
                  ${CMAKE_CURRENT_BINARY_DIR}/generated/megagraph-config-version.cmake
            DESTINATION ${MEGAGRAPH_PACKAGE_DIR})

    list(TRANSFORM arg_NEEDS PREPEND megagraph-)
    list(JOIN arg_NEEDS ", " PC_REQUIRES)
    list(JOIN private_libs " " PC_LIBS_PRIVATE)
    configure_file(${MEGAGRAPH_CMAKE_DIR}/library.pc.in generated/megagraph-${name}.pc @ONLY)
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/generated/megagraph-${name}.pc
            DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

# megagraph_isa_variant(<target> <source> <isa> [flags]): compiles a source once more, with those flags and MG_ISA
# defined, which the source gives its symbols as a suffix.
function(megagraph_isa_variant target source isa)
    get_filename_component(stem ${source} NAME_WE)
    set(object ${target}_${stem}_${isa})
    add_library(${object} OBJECT ${source})
    megagraph_target_defaults(${object})
    set_target_properties(${object} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_include_directories(${object} PRIVATE src include ${CMAKE_CURRENT_BINARY_DIR}/generated)
    target_compile_definitions(${object} PRIVATE MG_ISA=${isa})
    target_compile_options(${object} PRIVATE -Wno-unknown-pragmas)
    if(MEGAGRAPH_FUZZ)  # kernels read no files; instrumenting them takes minutes and finds nothing
        target_compile_options(${object} PRIVATE -fno-sanitize=address,undefined,fuzzer-no-link)
    endif()
    target_compile_options(${object} PRIVATE ${ARGN})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${object}>)
endfunction()

# megagraph_isa_variants(<target> <source>): as it is and, on x86-64, for x86-64-v3 and v4; MG_ISA is portable, v3, v4.
function(megagraph_isa_variants target source)
    megagraph_isa_variant(${target} ${source} portable)
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
        target_compile_definitions(${target} PRIVATE MG_HAVE_X86_VARIANTS)
        megagraph_isa_variant(${target} ${source} v3 -march=x86-64-v3)
        megagraph_isa_variant(${target} ${source} v4 -march=x86-64-v4 -mprefer-vector-width=512)
    endif()
endfunction()
