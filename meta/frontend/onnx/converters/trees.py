"""Trees of decisions of the domain ai.onnx.ml: regressors, classifiers and TreeEnsemble.

All trees of an ensemble are walked at once, one level in each step, by reading from tables of the
nodes. A leaf is a node whose branches lead to itself, so that short trees wait for the deepest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import constant
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.onnx.registry import onnx
from meta.frontend.onnx.values import numpy_of

DOMAIN = "ai.onnx.ml"
COMPARISONS = {
    "LEQ": op.less_equal,
    "LT": op.less,
    "GTE": op.greater_equal,
    "GT": op.greater,
    "EQ": op.equal,
    "NEQ": op.not_equal,
    "MEMBER": None,
}
MODES = tuple(COMPARISONS)
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
MAX_DEPTH = 512
"""Levels of a tree."""


@dataclass(frozen=True)
class Trees:
    """The nodes of all trees as columns of NumPy arrays.

    Attributes
    ----------
    roots: the first node of each tree. feature, split, mode: what a node compares, with what, and
    how, a place in `MODES`. yes, no: the nodes that follow; those of a leaf are itself. missing:
    whether NaN follows ``yes``. members: by node, what MEMBER looks for, filled up with NaN.
    """

    roots: Any
    feature: Any
    split: Any
    mode: Any
    yes: Any
    no: Any
    missing: Any
    members: Any = None

    def depth(self):
        """Return how many levels the deepest tree has."""
        level, places = 0, np.unique(self.roots)
        while True:
            inner = places[self.yes[places] != places]
            if not inner.size:
                return level
            places = np.unique(np.concatenate((self.yes[inner], self.no[inner])))
            level += 1
            if level > MAX_DEPTH:
                raise Unconvertible(f"a tree has a cycle, or more than {MAX_DEPTH} levels")

    def always(self, voted):
        """Whether every row gets a vote for every target: each has a tree whose leaves all vote for
        it. voted: (nodes, targets).
        """
        all_vote = []
        for root in self.roots:
            places, leaves = np.array([root]), []
            while places.size:
                inner = self.yes[places] != places
                leaves.append(places[~inner])
                places = np.concatenate((self.yes[places[inner]], self.no[places[inner]]))
            all_vote.append(voted[np.concatenate(leaves)].all(0))
        return bool(np.any(all_vote, 0).all())

    def leaves(self, x, call):
        """Return the leaf of each tree for each row of x: (rows, trees)."""
        count = len(self.yes)
        for column in (self.yes, self.no, self.roots):
            if column.size and not (0 <= column.min() and column.max() < count):
                raise Unconvertible(f"a branch leads to none of {count} nodes")
        first = constant(self.roots[None], "int64", call)
        place = op.broadcast_to(first, (x.shape[0], len(self.roots)))
        columns = {n: constant(getattr(self, n), "int64", call) for n in ("feature", "yes", "no")}
        for _ in range(self.depth()):
            value = op.take_along_axis(x, op.take(columns["feature"], place), 1)
            hit = self._hits(value, place, call)
            if self.missing.any():
                follows = op.take(constant(self.missing, "bool", call), place)
                hit = op.where(op.isnan(value), follows, hit)
            elif (self.mode == MODES.index("NEQ")).any():
                hit = op.logical_and(hit, op.logical_not(op.isnan(value)))
            place = op.where(hit, op.take(columns["yes"], place), op.take(columns["no"], place))
        return place

    def _hits(self, value, place, call):
        """Return whether the comparisons of nodes hold."""
        split = op.take(constant(self.split, value.dtype, call), place)
        inner = self.yes != np.arange(len(self.yes))
        used = np.unique(self.mode[inner])
        hit = None
        for mode in used:
            if MODES[mode] == "MEMBER":
                table = op.take(constant(self.members, value.dtype, call), place, 0)
                found = op.any(op.equal(op.expand_dims(value, 2), table), 2)
            else:
                found = COMPARISONS[MODES[mode]](value, split)
            if hit is None:
                hit = found
            else:
                chosen = op.take(constant(self.mode == mode, "bool", call), place)
                hit = op.where(chosen, found, hit)
        return hit


def _rows(x):
    """Return the input as rows of floating point numbers."""
    x = x if x.ndim == 2 else op.reshape(x, (1, -1))
    return x if x.dtype in ("float32", "float64") else op.astype(x, "float32")


def _voted(trees, rows, votes, targets, aggregate, call, decides=False):
    """Return the aggregate of the votes of leaves: (rows, targets).

    votes: (node, target, weight) of each vote. decides: the largest is looked for, so that no vote
    at all must not stand beside votes below 0.
    """
    nodes, ids, weights = (np.asarray(column) for column in votes)
    if ids.size and not (0 <= ids.min() and ids.max() < targets):
        raise Unconvertible(f"a leaf votes for none of {targets} targets")
    count, dtype, wide = len(trees.yes), rows.dtype, np.asarray(weights, np.float64)
    leaves = trees.leaves(rows, call)
    has_vote = np.zeros((count, targets), bool)
    has_vote[nodes, ids] = True
    unclear = aggregate in ("MIN", "MAX") or (decides and (wide < 0).any())
    if unclear and not trees.always(has_vote):
        raise Unconvertible(f"the {aggregate} of no votes at all, which runtimes read in two ways")
    if aggregate in ("SUM", "AVERAGE"):
        table = np.zeros((count, targets))
        np.add.at(table, (nodes, ids), wide)
        total = op.sum(op.take(constant(table, dtype, call), leaves, 0), 1)
        return total if aggregate == "SUM" else op.divide(total, float(leaves.shape[1]))
    least = aggregate == "MIN"
    table = np.full((count, targets), np.inf if least else -np.inf)
    (np.minimum if least else np.maximum).at(table, (nodes, ids), wide)
    chosen = op.take(constant(table, dtype, call), leaves, 0)
    return op.min(chosen, 1) if least else op.max(chosen, 1)


def _transformed(scores, name):
    if name in (None, "NONE"):
        return scores
    if name == "SOFTMAX":
        return op.softmax(scores, -1)
    if name == "LOGISTIC":
        return op.sigmoid(scores)
    raise Unconvertible(f"post_transform={name!r} is not supported", "NONE, SOFTMAX or LOGISTIC")


def _name(names, place, what):
    if not 0 <= place < len(names):
        raise Unconvertible(f"{what}={place} is unknown")
    return names[place]


BECOMES = (op.take, op.take_along_axis, op.where, op.sum)


@onnx(f"{DOMAIN}.TreeEnsemble", *BECOMES, ignore=("nodes_hitrates",))
def tree_ensemble(
    x,
    *,
    aggregate_function,
    leaf_targetids,
    leaf_weights,
    membership_values,
    n_targets,
    nodes_falseleafs,
    nodes_falsenodeids,
    nodes_featureids,
    nodes_missing_value_tracks_true,
    nodes_modes,
    nodes_splits,
    nodes_trueleafs,
    nodes_truenodeids,
    post_transform,
    tree_roots,
    call,
):
    """Leaves have numbers of their own, which stand behind those of the nodes here."""
    inner, leaves = len(nodes_featureids), len(leaf_targetids)
    mode = numpy_of(nodes_modes).reshape(-1).astype(int)
    if mode.size and mode.max() >= len(MODES):
        raise Unconvertible(f"the mode {mode.max()} of a node is unknown")

    def branch(ids, are_leaves):
        ids = np.asarray(ids) + inner * (np.asarray(are_leaves) != 0)
        return np.concatenate((ids, np.arange(inner, inner + leaves)))

    def column(values):
        return np.concatenate((values, np.zeros(leaves, np.asarray(values).dtype)))

    trees = Trees(
        np.asarray(tree_roots),
        column(np.asarray(nodes_featureids)),
        column(numpy_of(nodes_splits).reshape(-1)),
        column(mode),
        branch(nodes_truenodeids, nodes_trueleafs),
        branch(nodes_falsenodeids, nodes_falseleafs),
        column(np.asarray(nodes_missing_value_tracks_true or np.zeros(inner), bool)),
        _members(mode, membership_values, inner + leaves),
    )
    rows = _rows(x)
    votes = (np.arange(inner, inner + leaves), leaf_targetids, numpy_of(leaf_weights).reshape(-1))
    aggregate = _name(AGGREGATES, aggregate_function, "aggregate_function")
    found = _voted(trees, rows, votes, n_targets, aggregate, call)
    transform = _name(TRANSFORMS, post_transform, "post_transform")
    return cast_to(_transformed(found, transform), rows.dtype)


def _members(mode, values, count):
    """Return what the nodes of the mode MEMBER look for, one row for each node."""
    places = np.flatnonzero(mode == MODES.index("MEMBER"))
    if not places.size:
        return None
    sets, current = [], []
    for value in numpy_of(values).reshape(-1) if values is not None else ():
        if np.isnan(value):
            sets.append(current)
            current = []
        else:
            current.append(value)
    sets += [current] if current else []
    if len(sets) != len(places):
        raise Unconvertible(f"{len(sets)} sets of members for {len(places)} nodes")
    table = np.full((count, max(1, *map(len, sets))), np.nan)
    for place, members in zip(places, sets, strict=True):
        table[place, : len(members)] = members
    return table


def _by_ids(how):
    """Return the trees of the older operators, and the place of (tree, node)."""
    keys = list(zip(how["nodes_treeids"], how["nodes_nodeids"], strict=True))
    index = {key: i for i, key in enumerate(keys)}
    if len(index) != len(keys):
        raise Unconvertible("two nodes of a tree have one number")
    first: dict[int, int] = {}
    for i, (tree, _) in enumerate(keys):
        first.setdefault(tree, i)
    modes = [m.removeprefix("BRANCH_") for m in how["nodes_modes"]]
    unknown = set(modes) - set(MODES[:-1]) - {"LEAF"}
    if unknown:
        raise Unconvertible(f"the mode {min(unknown)!r} of a node is unknown")

    def branch(ids):
        return np.asarray(
            [
                i if modes[i] == "LEAF" else index.get((keys[i][0], ids[i]), -1)
                for i in range(len(keys))
            ]
        )

    missing = how["nodes_missing_value_tracks_true"] or [0] * len(keys)
    trees = Trees(
        np.asarray([first[t] for t in sorted(first)]),
        np.asarray(how["nodes_featureids"]),
        _numbers(how, "nodes_values"),
        np.asarray([0 if m == "LEAF" else MODES.index(m) for m in modes]),
        branch(how["nodes_truenodeids"]),
        branch(how["nodes_falsenodeids"]),
        np.asarray(missing, bool),
    )
    return trees, index


def _numbers(how, name):
    """Return an attribute of floats, or its other form as a tensor; None without one."""
    tensor = how.get(f"{name}_as_tensor")
    values = how[name] if tensor is None else numpy_of(tensor).reshape(-1)
    return None if values is None else np.asarray(values)


def _scores(x, how, kind, targets, aggregate, call):
    """Return the aggregate of the votes, attributes named ``kind_*``, and the base values."""
    trees, index = _by_ids(how)
    keys = zip(how[f"{kind}_treeids"], how[f"{kind}_nodeids"], strict=True)
    places = [index.get(key, -1) for key in keys]
    if min(places, default=0) < 0:
        raise Unconvertible("a vote is of a node that there is not")
    votes = (places, how[f"{kind}_ids"], _numbers(how, f"{kind}_weights"))
    rows = _rows(x)
    decides = kind == "class" and targets > 1
    found = _voted(trees, rows, votes, targets, aggregate, call, decides)
    base = _numbers(how, "base_values")
    return found if base is None else op.add(found, constant(base, rows.dtype, call))


_HITS = ("nodes_hitrates", "nodes_hitrates_as_tensor")


@onnx(f"{DOMAIN}.TreeEnsembleRegressor", *BECOMES, ignore=_HITS)
def tree_ensemble_regressor(x, *, aggregate_function, n_targets, post_transform, call, **how):
    if aggregate_function not in AGGREGATES:
        raise Unconvertible(f"aggregate_function={aggregate_function!r} is unknown")
    found = _scores(x, how, "target", n_targets, aggregate_function, call)
    return op.astype(_transformed(found, post_transform), "float32")


@onnx(f"{DOMAIN}.TreeEnsembleClassifier", *BECOMES, op.argmax, ignore=_HITS)
def tree_ensemble_classifier(
    x, *, classlabels_int64s, classlabels_strings, post_transform, call, **how
):
    """(labels, scores). Votes for one class alone are those for the second of two."""
    if classlabels_strings or not classlabels_int64s:
        raise Unconvertible("labels that are text, which no array holds", "classlabels_int64s")
    count = len(classlabels_int64s)
    voted = set(how["class_ids"])
    if len(voted) == 1 and count <= 2:
        if count == 1 or voted != {0}:
            raise Unconvertible(f"votes for the class {min(voted)} alone, of {count}")
        scores = _binary(x, how, post_transform, call)
    else:
        scores = _transformed(_scores(x, how, "class", count, "SUM", call), post_transform)
    labels = constant(classlabels_int64s, "int64", call)
    scores = op.astype(scores, "float32")
    return op.take(labels, op.argmax(scores, 1)), scores


def _binary(x, how, post_transform, call):
    """Return the scores of two classes, of which one alone has votes."""
    weights = _numbers(how, "class_weights")
    logistic = post_transform == "LOGISTIC"
    if not logistic and (post_transform not in (None, "NONE") or (weights < 0).any()):
        raise Unconvertible(
            "votes for one of two classes with such weights, which runtimes read in several ways"
        )
    found = _scores(x, how, "class", 1, "SUM", call)[:, :1]
    other = op.negative(found) if logistic else op.subtract(1.0, found)
    both = op.concat((other, found), 1)
    return op.sigmoid(both) if logistic else both
