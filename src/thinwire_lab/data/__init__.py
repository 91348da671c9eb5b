"""Data sets in their official form: located in a folder or in the cache, or downloaded, and checked before use."""

from .datasets import (
    Archive,
    Checksum,
    DataError,
    DataSet,
    LoadedFiles,
    ProgressCallback,
    cache_folder,
    is_available,
    load,
    search_folders,
)  # fmt: skip

__all__ = [
    "Archive", "Checksum", "DataError", "DataSet", "LoadedFiles", "ProgressCallback", "cache_folder", "is_available",
    "load", "search_folders",
]  # fmt: skip
