# To be sourced: finds libclang, with which the bindings of BoringSSL (for quiche) are made.
#
# Where the system has none, the one from PyPI does; it is kept in target/ of the folder from which this is sourced. Needs
# Python 3 with venv, and a C compiler.
if [ -z "${LIBCLANG_PATH:-}" ] && ! ldconfig -p 2>/dev/null | grep -Eq 'libclang(-[0-9.]+)?[.]so'; then
    venv=target/peers/libclang
    if [ ! -x "$venv/bin/python" ]; then
        python3 -m venv "$venv"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check libclang==18.1.1
    fi
    LIBCLANG_PATH="$("$venv/bin/python" -c 'import clang, os; print(os.path.join(os.path.dirname(clang.__file__), "native"))')"
    export LIBCLANG_PATH
    # That package is the library alone; the headers of the compiler's own come from the C compiler.
    BINDGEN_EXTRA_CLANG_ARGS="-I$(cc -print-file-name=include) ${BINDGEN_EXTRA_CLANG_ARGS:-}"
    export BINDGEN_EXTRA_CLANG_ARGS
fi
