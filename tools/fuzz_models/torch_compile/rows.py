"""The statements that programs are made of: a line each.

A line starts with the kind of its first operand, {0}: F of floating point, I integers, B booleans,
N all but booleans, A anything; then its least rank, or its least and greatest; then, after *, how
often it is drawn, 1 if not said. An expression makes one value; a line with r0 and r1 names what it
makes; lines of WRITES make nothing. `Tokens` has what stands in <>.
"""

VIEWS = """
A1*12 {0}[<slice>]
A1*3 {0}.select(<A>, <i>)
A1*3 {0}.narrow(<A>, <i>, 1)
A1*2 {0}.narrow(<A>, <start>, <n> - <start>)
A1*3 r0, r1 = {0}.chunk(2, <A>)
A1 *_, r0 = {0}.chunk(3, <A>)
A1 r0, *_ = {0}.split(<k>, <A>)
A1 *_, r0 = {0}.split(<k>, <A>)
A1*2 r0, r1 = {0}.split([<start>, <n> - <start>], <A>)
A1 r0, *_ = {0}.tensor_split(2, <A>)
A1 *_, r0 = {0}.tensor_split(3, <A>)
A1*2 r0, *_ = {0}.unbind(<A>)
A1 *_, r0 = {0}.unbind(<A>)
A0*2 {0}.view(-1)
A0*2 {0}.reshape(-1)
A1 {0}.reshape(<n>, -1)
A1 {0}.view(2, -1)
A1 {0}.reshape(-1, 2)
A1 {0}.view({0}.shape[0] // 2, -1)
A1 {0}.view(<n> * 1, -1)
A2 {0}.flatten(<A>)
A2 {0}.flatten(0, 1)
A1 {0}.unflatten(<A>, (2, -1))
A1 {0}.unflatten(<A>, (-1, 2))
A2*3 {0}.transpose(0, <A>)
A2*2 {0}.mT
A2-2 {0}.t()
A3 {0}.permute(<perm>)
A2 {0}.movedim(0, -1)
A0*2 {0}.unsqueeze(<new>)
A1 {0}.squeeze(<A>)
A1 {0}.squeeze()
A0*2 {0}.expand(2, *{0}.shape)
A0 {0}.expand(<k>, *{0}.shape)
A1 {0}[None]
A1 {0}[..., None]
A1*2 {0}[..., <i>]
A2*2 {0}.diagonal()
A2 {0}.diagonal(<k>)
A1 {0}.unfold(<A>, 2, 1)
A0 {0}.detach()
A0 {0}.view_as({0})
A0 {0}[...]
A1*2 {0}[:]
A1 torch.broadcast_to({0}, (2, *{0}.shape))
A2 torch.movedim({0}, <A>, 0)
A1 torch.atleast_2d({0})
"""

COPIES = """
A0*2 {0}.clone()
A0 {0}.contiguous()
A4-4*2 {0}.contiguous(memory_format=torch.channels_last)
A0 {0}.clone(memory_format=torch.contiguous_format)
A1*2 {0}.flip(<A>)
A1*2 {0}.roll(<k>, <A>)
A1 {0}.roll(-<k>, <A>)
A0*2 {0}.to(<dtype>)
A0 {0}.to({0}.dtype)
N0 {0}.float()
A1*2 torch.cat([{0}, <same>], <A>)
A1 torch.cat([{0}[<slice>], {0}[<slice>]], 0)
A0*2 torch.stack([{0}, <same>], <new>)
A1 {0}.repeat(2, *[1] * ({0}.ndim - 1))
A1 {0}.repeat_interleave(2, <A>)
A1-2 {0}.tile(<k>)
A1*2 {0}[<list>]
A1*2 {0}.index_select(<A>, <index>)
A1*2 {0}[<index>]
A1 {0}.gather(<A>, {0}.argsort(dim=<A>, stable=True))
A1 torch.take_along_dim({0}, {0}.argsort(dim=<A>, stable=True), <A>)
A1*2 torch.nn.functional.pad({0}, (<k>, 1))
A1 torch.nn.functional.pad({0}, (0, -1))
A1 torch.nn.functional.pad({0}, (<k>, <k>), value=<c>)
A2*2 {0}.tril()
A2 {0}.triu(<k>)
A2 {0}.tril(-<k>)
A1 {0}[{0} != 0]
A0*2 torch.zeros_like({0})
A0 torch.full_like({0}, 2)
A1 {0}.new_zeros({0}.shape[0] + 1)
A1*2 torch.arange(<n>, device={0}.device)
A1 torch.arange(<n> - 1, -1, -1, device={0}.device)
A1 torch.ones(<n>, <k>, device={0}.device)
A1 torch.full((<n>,), <k>, device={0}.device)
A0 torch.tensor([<c>, 2.0], device={0}.device)
A1-1 torch.diag({0})
"""

WRITES = """
N0*3 {0}.add_(<c>)
N0*3 {0}.mul_(<c>)
N0*2 {0}.add_(<y>)
N0*2 {0}.copy_(<y>.clone())
A0 {0}.zero_()
N0 {0}.fill_(<c>)
N1*5 {0}[<slice>] = <c>
N1*4 {0}[<slice>] += <c>
N1*2 {0}[<slice>].mul_(<c>)
N1*3 {0}[<slice>] = {0}[<slice>].clone()
N1*2 {0}[<slice>] = <y>[<slice0>].clone()
N1*2 {0}.select(<A>, <i>).mul_(<c>)
N1 {0}.narrow(<A>, <i>, 1).fill_(<c>)
N1 {0}.view(-1)[<slice0>].add_(<c>)
N2*2 {0}.transpose(0, <A>).add_(<c>)
N2 {0}.mT[<slice0>] = <c>
N2 {0}.diagonal().fill_(<c>)
N1*2 {0}[<list>] = <c>
N1 {0}[<list>] += <c>
N1*2 {0}[{0} > <c>] = <c>
N0*2 {0}.masked_fill_({0} < <c>, <c>)
N1*2 {0}.index_put_((<index>,), torch.tensor(2, dtype={0}.dtype, device={0}.device))
N1*2 {0}.index_put_((<index>,), {0}[<index>] + 1, accumulate=True)
N1 {0}.index_fill_(<A>, <index>, <c>)
N1 {0}.index_add_(<A>, <index>, {0}.index_select(<A>, <index>))
N1 {0}.scatter_(<A>, {0}.argsort(dim=<A>, stable=True), {0}.clone())
N1 {0}.index_copy_(<A>, <index>, {0}.index_select(<A>, <index>) * 2)
N0 {0}.relu_()
N0 {0}.clamp_(min=<k>)
F0 {0}.sigmoid_()
F0 {0}.tanh_()
N0 {0}.neg_()
N0 torch.add({0}, <c>, out={0})
N0 {0}.sub_(<y>)
N0 {0}.unsqueeze_(0)
A2-2 {0}.t_()
B1 {0}[<slice>] = True
B0 {0}.logical_not_()
N1 {0}.cumsum_(<A>)
F1*2 {0}[<slice>].copy_({0}[<slice>].sigmoid())
A1 for row in {0}.unbind(<A>): row.zero_()
N1 {0}.unbind(<A>)[0].add_(<c>)
N1 {0}.chunk(2, <A>)[-1].mul_(<c>)
F0 {0}.data.mul_(2)
F0 {0}.addcmul_({0}, <y>)
F0 {0}.lerp_({0} * 2, 0.5)
"""

ELEMENTWISE = """
F0 torch.exp({0} * 0.5)
F0 F.leaky_relu({0}, 0.1)
F0 torch.sqrt({0}.abs() + 1)
F0 torch.rsqrt({0}.square() + 1)
F0 torch.log1p({0}.abs())
F0 torch.reciprocal({0}.abs() + 1)
N0*2 -{0}
N0 {0}.clamp(-1, <k>)
N0*4 {0} + <c>
N0*4 {0} * <c>
N0*2 <c> - {0}
N0 {0} / 2
N0 {0} // 2
N0 {0} % 3
N0 {0} ** 2
N0*4 {0} * {0}.shape[<A0>]
N0*6 {0} + <y>
N0*5 {0} * <y>
N0*3 {0} - <y>
N0 {0} / (<y>.abs() + 1)
F0 torch.lerp({0}, <same>, 0.25)
F0 torch.addcmul({0}, <same>, <same>, value=<c>)
N0*2 {0} > <c>
N0 {0} <= <y>
N0 {0} == <y>
A0*3 torch.where({0} > 0, {0}, <c>)
N0*2 torch.where(<y> > 0, {0}, <y>)
B0 ~{0}
B0 {0} & <same>
B0 {0} ^ True
B0*2 torch.where({0}, <c>, 0.0)
I0 {0} & 3
I0 {0} << 1
I0*2 {0}.float()
B0*2 {0}.float()
A0 {0}.bool()
N0 {0}.masked_fill({0} > <c>, <c>)
A1*2 {0} if {0}.shape[0] > 2 else {0} * 2
N0 {0} if k > 1 else {0} + 1
"""

REDUCTIONS = """
N1*2 {0}.sum(<A>, keepdim=True)
F2 {0}.mean((0, 1))
F1 {0}.amin(<A>, keepdim=True)
F1*2 r0, r1 = {0}.max(<A>)
F1 {0}.min(<A>).values
F1 {0}.var(<A>, correction=0)
F1 torch.linalg.vector_norm({0}, dim=<A>)
F1 {0}.cummax(<A>).values
F1 r0, r1 = {0}.sort(dim=<A>, stable=True)
F1 {0}.argsort(dim=<A>, stable=True)
F1 {0}.detach().topk(1, <A>).values
F1 {0}.detach().topk(<k>, <A>).values
F1 {0}.detach().contiguous().median(<A>).values
F1 {0}.detach().kthvalue(1, <A>).values
F1 {0}.diff(dim=<A>)
F1*4 torch.softmax({0}, <A>)
F1*2 F.normalize({0}, dim=<A>)
F1 torch.aminmax({0}, dim=<A>).min
F1 {0}.softmax(<A>) * {0}.shape[<A0>]
N1 {0}.cumsum(<A>)[<slice0>]
"""

LAYERS = """
F2*3 {0} @ {0}.mT
F2*2 {0}.mT @ {0}
F1*4 {0} @ <p last 3>
F1*3 F.linear({0}, <p 5 last>, <p 5>)
F1 F.linear({0}, <p 5 last>)
F2-2 torch.addmm(<p 3>, {0}, <p last 3>)
F3-3*2 torch.bmm({0}, {0}.mT)
F2-2 torch.mm({0}, <p last 2>)
F2 torch.einsum("...ij,...kj->...ik", {0}, {0})
F1-1 torch.outer({0}, {0})
F1-1 torch.dot({0}, {0})
F2-2 torch.mv({0}, <p last>)
F1*3 F.layer_norm({0}, {0}.shape[-1:])
F1*2 F.layer_norm({0}, {0}.shape[-1:], <p last>, <p last>)
F1*2 F.rms_norm({0}, {0}.shape[-1:], <p last>)
F2*2 F.batch_norm({0}, <r one>, <r one>, training=True)
F2 F.batch_norm({0}, <r one>, <r one>.abs(), <p one>, <p one>)
F3-4 F.group_norm({0}, 1, <p one>)
F4-4*4 F.conv2d({0}, <p 4 one 3 3>, <p 4>, padding=1)
F4-4 F.conv2d({0}, <p 2 one 2 2>, stride=2)
F4-4 F.conv_transpose2d({0}, <p one 2 2 2>, stride=2)
F4-4*2 F.max_pool2d({0}, 2)
F4-4*2 F.avg_pool2d({0}, 2)
F4-4 F.adaptive_avg_pool2d({0}, 1)
F4-4 F.interpolate({0}, scale_factor=2)
F4-4 F.pixel_shuffle({0}.repeat(1, 4, 1, 1), 2)
F3-3*2 F.conv1d({0}, <p 2 one 2>)
F3-3 F.max_pool1d({0}, 2)
F3-4*3 F.scaled_dot_product_attention({0}, {0}, {0})
F3-4*2 F.scaled_dot_product_attention({0}, {0}, {0}, is_causal=True)
F3-4 F.scaled_dot_product_attention({0}, {0} * 0.5, {0}[<slice0>] if False else {0})
F3-3 torch.softmax({0} @ {0}.mT / 2, -1) @ {0}
F2-2*2 torch.softmax({0} @ {0}.mT, -1) @ {0}
F2-2 F.cross_entropy({0}, {0}.argmax(-1))
F2-2 F.nll_loss(torch.log_softmax({0}, -1), {0}.argmax(-1))
F2-2 F.cross_entropy({0}, {0}.argmax(-1), reduction="none")
I0*3 F.embedding({0} % 5, <p 5 3>)
I0*2 F.one_hot({0} % 4, 4)
I1-1 torch.zeros(4, device={0}.device).index_add(0, {0} % 4, torch.ones_like({0}).float())
I1-1 torch.bincount({0}.abs(), minlength=4)
F2-2 torch.cdist({0}, {0})
F2-2 F.cosine_similarity({0}, {0} + 1)
F2-2 F.kl_div(torch.log_softmax({0}, -1), torch.softmax({0} * 2, -1), reduction="batchmean")
F0 F.dropout({0}, 0.5, training=False)
F2 {0} @ {0}.mT.softmax(-1)
"""
