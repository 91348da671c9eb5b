"""Models of the laboratory as plain torch modules.

Parameter names seed the initial weights and the random bits of compressors: renaming a submodule changes all results.
"""
