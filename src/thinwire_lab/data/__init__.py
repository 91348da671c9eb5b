"""Data sets as their authors publish them: found in a folder, in the cache or downloaded, and checked before use."""

from .where import Archive, DataError, DataSet, Loaded, Pin, Tell, cache_folder, is_there, load, places

__all__ = ["Archive", "DataError", "DataSet", "Loaded", "Pin", "Tell", "cache_folder", "is_there", "load", "places"]
