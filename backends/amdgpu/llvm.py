"""Assemble in this process with LLVM's library: starting a program takes longer than assembling.

The text is the inline assembly of an empty module, passed through LLVM's C API. After it LLVM writes the parts of an
empty module: padding of the code and a note without kernels, which `hsaco` drops.

Only text of our printer comes here (`assemble` checks its directives). LLVM reports instructions, labels and directives
that it rejects as diagnostics; but some errors (`.size` of an undefined symbol) end the process.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from typing import Any

import attrs

from convgen.backends.toolchain import VERSIONS

TRIPLE = "amdgcn-amd-amdhsa"
_FIRST_VERSION = 18  #: first version with this name of the library
_CODE_OBJECT = 500  #: code object version, as a module flag encodes it
_FLAG_ERROR, _OBJECT_FILE, _ERROR = 0, 1, 0  #: constants of the C API: behaviour of a flag, kind of output, severity
_Handler = CFUNCTYPE(None, c_void_p, c_void_p)

_METADATA = ".amdgpu_metadata"  #: the one directive whose text is YAML, which is sensitive to indents
_COLUMNS = re.compile("  +")


def _without_columns(text: str) -> str:
    """Return the module with single spaces between words: LLVM spends a quarter of its time on spaces."""
    code, metadata, rest = text.partition(_METADATA)
    return _COLUMNS.sub(" ", code) + metadata + rest


@cache
def library(first: int) -> Llvm | None:
    """Return the newest installed library with the AMD target, of LLVM `first` or newer; None if there is none."""
    for version in VERSIONS:
        if version < max(first, _FIRST_VERSION):
            return None
        try:
            loaded = ctypes.CDLL(f"libLLVM.so.{version}.1")
        except OSError:
            continue
        if hasattr(loaded, "LLVMInitializeAMDGPUAsmParser"):
            return Llvm(f"libLLVM.so.{version}.1", loaded)
    return None


@attrs.define(eq=False, init=False)
class Llvm:
    """LLVM's library, with the functions that are called here."""

    name: str
    _library: ctypes.CDLL
    _machines: dict[str, int]

    def __init__(self, name: str, library: ctypes.CDLL) -> None:
        self.name, self._library, self._machines = name, library, {}
        for part in ("TargetInfo", "Target", "TargetMC", "AsmPrinter", "AsmParser"):
            self._function(f"InitializeAMDGPU{part}", None)()

    @property
    def version(self) -> str:
        """Return the name and release of the library."""
        numbers = [ctypes.c_uint() for _ in range(3)]
        self._function("GetVersion", None, *[POINTER(ctypes.c_uint)] * 3)(*map(byref, numbers))
        return f"{self.name} {'.'.join(str(n.value) for n in numbers)}"

    def _function(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        function = getattr(self._library, f"LLVM{name}")
        function.restype, function.argtypes = result, arguments
        typed: Callable[..., Any] = function
        return typed

    def relocatable(self, text: str, target: str) -> bytes | None:
        """Return the object file of an assembly text; None if the text has an error."""
        errors: list[int] = []
        severity = self._function("GetDiagInfoSeverity", c_int, c_void_p)
        # With a handler, LLVM reports all diagnostics; without one it would end the process at the first.
        handler = _Handler(lambda info, _: errors.append(1) if severity(info) == _ERROR else None)
        context = self._function("ContextCreate", c_void_p)()
        try:
            self._function("ContextSetDiagnosticHandler", None, c_void_p, _Handler, c_void_p)(context, handler, None)
            return self._emitted(context, _without_columns(text).encode(), target, errors)
        finally:
            self._function("ContextDispose", None, c_void_p)(context)

    def _emitted(self, context: int, text: bytes, target: str, errors: list[int]) -> bytes | None:
        machine = self._machine(target)
        module = self._function("ModuleCreateWithNameInContext", c_void_p, c_char_p, c_void_p)(b"kernel.s", context)
        try:
            self._function("SetTarget", None, c_void_p, c_char_p)(module, TRIPLE.encode())
            self._function("SetModuleInlineAsm2", None, c_void_p, c_char_p, c_size_t)(module, text, len(text))
            self._flag(context, module, b"amdhsa_code_object_version", _CODE_OBJECT)
            return self._object(machine, module, errors)
        finally:
            self._function("DisposeModule", None, c_void_p)(module)

    def _flag(self, context: int, module: int, name: bytes, value: int) -> None:
        word = self._function("Int32TypeInContext", c_void_p, c_void_p)(context)
        constant = self._function("ConstInt", c_void_p, c_void_p, ctypes.c_ulonglong, c_int)(word, value, 0)
        metadata = self._function("ValueAsMetadata", c_void_p, c_void_p)(constant)
        add = self._function("AddModuleFlag", None, c_void_p, c_int, c_char_p, c_size_t, c_void_p)
        add(module, _FLAG_ERROR, name, len(name), metadata)

    def _machine(self, target: str) -> int:
        """Return the target machine that emits code for a target; it serves all modules."""
        if target not in self._machines:
            handle, message = c_void_p(), c_void_p()
            of_triple = self._function("GetTargetFromTriple", c_int, c_char_p, POINTER(c_void_p), POINTER(c_void_p))
            failed = of_triple(TRIPLE.encode(), byref(handle), byref(message))
            assert not failed, "the library has the AMD target"
            create = self._function("CreateTargetMachine", c_void_p, c_void_p, *[c_char_p] * 3, *[c_int] * 3)
            self._machines[target] = create(handle, TRIPLE.encode(), target.encode(), b"", 0, 0, 0)
        return self._machines[target]

    def _object(self, machine: int, module: int, errors: list[int]) -> bytes | None:
        message, buffer = c_void_p(), c_void_p()
        emit = self._function(
            "TargetMachineEmitToMemoryBuffer", c_int, *(c_void_p, c_void_p, c_int, POINTER(c_void_p), POINTER(c_void_p))
        )
        if emit(machine, module, _OBJECT_FILE, byref(message), byref(buffer)):
            self._function("DisposeMessage", None, c_void_p)(message)
            return None
        try:
            start = self._function("GetBufferStart", c_void_p, c_void_p)(buffer)
            size = self._function("GetBufferSize", c_size_t, c_void_p)(buffer)
            return None if errors else ctypes.string_at(start, size)
        finally:
            self._function("DisposeMemoryBuffer", None, c_void_p)(buffer)
