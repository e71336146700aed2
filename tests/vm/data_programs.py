"""Programs with data types and references, as text: what tests of both executors run."""

LIST = "type List { Nil() Cons(float32[], type List) }\n"

SUM = (
    LIST
    + """
func @main(%x: float32[], %n: int64[]) -> float32[] {
  %l: type List = @build(%x, %n)
  %s: float32[] = @sum(%l)
  return %s
}
func @build(%x: float32[], %n: int64[]) -> type List {
  %none: bool[] = less_equal(%n, const int64[] 0)
  %r: type List = if %none {
    %nil: type List = construct Nil() -> type List
    yield %nil
  } else {
    %m: int64[] = subtract(%n, const int64[] 1)
    %rest: type List = @build(%x, %m)
    %cons: type List = construct Cons(%x, %rest) -> type List
    yield %cons
  }
  return %r
}
func @sum(%l: type List) -> float32[] {
  %is_nil: bool[] = is_variant Nil(%l)
  %r: float32[] = if %is_nil {
    yield const float32[] 0.0
  } else {
    %h: float32[] = get_field Cons.0(%l) -> float32[]
    %t: type List = get_field Cons.1(%l) -> type List
    %u: float32[] = @sum(%t)
    %v: float32[] = add(%h, %u)
    yield %v
  }
  return %r
}"""
)

# Built and folded by loops: calls in tail position.
SUM_BY_LOOPS = (
    LIST
    + """
func @main(%x: float32[], %n: int64[]) -> float32[] {
  %nil: type List = construct Nil() -> type List
  %l: type List = @build(%x, %n, %nil)
  %s: float32[] = @sum(%l, const float32[] 0.0)
  return %s
}
func @build(%x: float32[], %n: int64[], %l: type List) -> type List {
  %none: bool[] = less_equal(%n, const int64[] 0)
  %r: type List = if %none {
    yield %l
  } else {
    %m: int64[] = subtract(%n, const int64[] 1)
    %cons: type List = construct Cons(%x, %l) -> type List
    %more: type List = @build(%x, %m, %cons)
    yield %more
  }
  return %r
}
func @sum(%l: type List, %s: float32[]) -> float32[] {
  %is_cons: bool[] = is_variant Cons(%l)
  %r: float32[] = if %is_cons {
    %h: float32[] = get_field Cons.0(%l) -> float32[]
    %t: type List = get_field Cons.1(%l) -> type List
    %u: float32[] = add(%h, %s)
    %v: float32[] = @sum(%t, %u)
    yield %v
  } else {
    yield %s
  }
  return %r
}"""
)

TREE = """
type Tree { Leaf() Node(type Tree, float32[2], type Tree) }
func @main(%x: float32[2], %n: int64[]) -> float32[2] {
  %t: type Tree = @grow(%x, %n)
  %s: float32[2] = @total(%t)
  return %s
}
func @grow(%x: float32[2], %n: int64[]) -> type Tree {
  %none: bool[] = less_equal(%n, const int64[] 0)
  %r: type Tree = if %none {
    %leaf: type Tree = construct Leaf() -> type Tree
    yield %leaf
  } else {
    %m: int64[] = subtract(%n, const int64[] 1)
    %a: type Tree = @grow(%x, %m)
    %b: type Tree = @grow(%x, %m)
    %node: type Tree = construct Node(%a, %x, %b) -> type Tree
    yield %node
  }
  return %r
}
func @total(%t: type Tree) -> float32[2] {
  %is_leaf: bool[] = is_variant Leaf(%t)
  %r: float32[2] = if %is_leaf {
    yield const float32[2] [0.0, 0.0]
  } else {
    %a: type Tree = get_field Node.0(%t) -> type Tree
    %x: float32[2] = get_field Node.1(%t) -> float32[2]
    %b: type Tree = get_field Node.2(%t) -> type Tree
    %u: float32[2] = @total(%a)
    %v: float32[2] = @total(%b)
    %w: float32[2] = add(%u, %v)
    %y: float32[2] = add(%w, %x)
    yield %y
  }
  return %r
}"""

STRAIGHT = """
func @main(%x: float32[2]) -> (float32[2], float32[2]) {
  %r: ref(float32[2]) = make_ref(%x)
  %a: float32[2] = read_ref(%r)
  %b: float32[2] = add(%a, 1.0)
  %w: () = write_ref(%r, %b)
  %c: float32[2] = read_ref(%r)
  %d: float32[2] = multiply(%a, %c)
  return (%c, %d)
}"""

BRANCHES = """
func @main(%x: float32[2], %p: bool[]) -> float32[2] {
  %r: ref(float32[2]) = make_ref(%x)
  %u: () = if %p {
    %a: float32[2] = add(%x, 1.0)
    %w: () = write_ref(%r, %a)
    yield %w
  } else {
    yield (,)
  }
  %y: float32[2] = read_ref(%r)
  return %y
}"""

LOOP = """
func @main(%x: float32[2], %n: int64[]) -> float32[2] {
  %r: ref(float32[2]) = make_ref(%x)
  %i: ref(int64[]) = make_ref(%n)
  %u: () = @loop(%r, %i)
  %y: float32[2] = read_ref(%r)
  return %y
}
func @loop(%r: ref(float32[2]), %i: ref(int64[])) -> () {
  %n: int64[] = read_ref(%i)
  %more: bool[] = greater(%n, const int64[] 0)
  %u: () = if %more {
    %m: int64[] = subtract(%n, const int64[] 1)
    %w: () = write_ref(%i, %m)
    %a: float32[2] = read_ref(%r)
    %b: float32[2] = multiply(%a, 2.0)
    %z: () = write_ref(%r, %b)
    %v: () = @loop(%r, %i)
    yield %v
  } else {
    yield (,)
  }
  return %u
}"""

CLOSURE = """
func @main(%x: float32[2]) -> (float32[2], float32[2], float32[2]) {
  %r: ref(float32[2]) = make_ref(%x)
  %next: fn() -> float32[2] = fn() -> float32[2] {
    %old: float32[2] = read_ref(%r)
    %new: float32[2] = add(%old, 1.0)
    %w: () = write_ref(%r, %new)
    return %old
  }
  %a: float32[2] = %next()
  %b: float32[2] = %next()
  %c: float32[2] = read_ref(%r)
  return (%a, %b, %c)
}"""

# A reference to a closure: how a let-bound function recurses.
KNOT = (
    LIST
    + """
func @main(%x: float32[], %n: int64[]) -> float32[] {
  %same: fn(int64[]) -> float32[] = fn(%i: int64[]) -> float32[] {
    return %x
  }
  %r: ref(fn(int64[]) -> float32[]) = make_ref(%same)
  %f: fn(int64[]) -> float32[] = fn(%i: int64[]) -> float32[] {
    %none: bool[] = less_equal(%i, const int64[] 0)
    %y: float32[] = if %none {
      yield %x
    } else {
      %j: int64[] = subtract(%i, const int64[] 1)
      %again: fn(int64[]) -> float32[] = read_ref(%r)
      %u: float32[] = %again(%j)
      %v: float32[] = add(%u, 1.0)
      yield %v
    }
    return %y
  }
  %w: () = write_ref(%r, %f)
  %y: float32[] = %f(%n)
  return %y
}"""
)

HELD = (
    LIST
    + """
type Shape {
  Round(float32[2], (float32[2], int64[]))
  Flat(ref(type List), fn(float32[]) -> float32[])
}
func @main(%x: float32[2], %s: float32[], %p: bool[]) -> (float32[2], float32[], bool[]) {
  %f: fn(float32[]) -> float32[] = fn(%a: float32[]) -> float32[] {
    %b: float32[] = multiply(%a, %s)
    return %b
  }
  %nil: type List = construct Nil() -> type List
  %list: type List = construct Cons(%s, %nil) -> type List
  %r: ref(type List) = make_ref(%nil)
  %round: type Shape = construct Round(%x, (%x, const int64[] 3)) -> type Shape
  %flat: type Shape = construct Flat(%r, %f) -> type Shape
  %chosen: type Shape = if %p {
    yield %round
  } else {
    yield %flat
  }
  %w: () = write_ref(%r, %list)
  %is_round: bool[] = is_variant Round(%chosen)
  %y: (float32[2], float32[]) = if %is_round {
    %t: (float32[2], int64[]) = get_field Round.1(%chosen) -> (float32[2], int64[])
    %t0: float32[2] = %t.0
    %z: float32[2] = add(%t0, %t0)
    yield (%z, %s)
  } else {
    %c: ref(type List) = get_field Flat.0(%chosen) -> ref(type List)
    %l: type List = read_ref(%c)
    %h: float32[] = get_field Cons.0(%l) -> float32[]
    %g: fn(float32[]) -> float32[] = get_field Flat.1(%chosen) -> fn(float32[]) -> float32[]
    %k: float32[] = %g(%h)
    yield (%x, %k)
  }
  %y0: float32[2] = %y.0
  %y1: float32[] = %y.1
  %no: bool[] = logical_not(%is_round)
  return (%y0, %y1, %no)
}"""
)
