"""Kernels written in the CuTe DSL: what is imported only while a kernel is compiled."""
