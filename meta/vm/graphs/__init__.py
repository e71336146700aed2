"""CUDA graphs: a *region* is a run of kernels with nothing between them that the host decides.

It runs kernel by kernel at the first call, is recorded at the second, and replayed from then on.
Other arguments than the model's arrays are copied into the region's own memory on the current
stream, and results are copied out. A region is recorded again if an array's tensor is exchanged
(`runtime/buffer_replacement.py`). A kernel that cannot be recorded is found by trying, and its
region is split. ``executable.cuda_graph`` is the report; ``compile(cuda_graph=True)`` raises
CaptureError instead, and ``False`` and META_CUDA_GRAPH=0 do without graphs.

`regions.py` finds regions, `link_regions.py` links them, `region_step.py` runs one, `capture.py`
records and has what the regions of a program share, `rank_agreement.py` lets ranks do alike.
"""
