"""k-means with k-means++ seeds on points in the plane, in NumPy."""

import numpy as np


def make_points():
    rng = np.random.default_rng(0)
    centers = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0], [5.0, 5.0]])
    noise = rng.normal(size=(4, 50, 2))
    return (centers[:, None] + 0.5 * noise).reshape(-1, 2).astype("float32")


def distances(points, centers):
    return ((points[:, None, :] - centers[None, :, :]) ** 2).sum(axis=-1)


def first_centers(points, k):
    centers = points[:1]
    for _ in range(k - 1):
        far = np.argmax(distances(points, centers).min(axis=1))
        centers = np.concat([centers, points[far : far + 1]])
    return centers


def kmeans(points, k, steps=50):
    centers = first_centers(points, k)
    best = np.inf
    for step in range(steps):
        d = distances(points, centers)
        labels = np.argmin(d, axis=1)
        inertia = d[np.arange(len(points)), labels].mean()
        if not inertia < best - 1e-6:
            break
        best = inertia
        for j in range(k):
            mine = points[labels == j]
            if len(mine) > 0:
                centers[j] = mine.mean(axis=0)
        print(f"{step}: {inertia:.4f}")
    return centers, labels, best


def silhouette(points, labels, k):
    d = np.sqrt(distances(points, points))
    one_hot = np.eye(k)[labels]
    sums = d @ one_hot
    counts = one_hot.sum(axis=0)
    rows = np.arange(len(points))
    a = sums[rows, labels] / (counts[labels] - 1)
    other = sums / counts
    other[rows, labels] = np.inf
    b = other.min(axis=1)
    return ((b - a) / np.maximum(a, b)).mean()


def main():
    points = make_points()
    standard = (points - points.mean(axis=0)) / points.std(axis=0)
    centers, labels, inertia = kmeans(standard, 4)
    order = np.argsort(centers[:, 0] + 10 * centers[:, 1])
    sizes = np.bincount(labels, minlength=4)[order]
    score = silhouette(standard, labels, 4)
    print(f"inertia {inertia:.4f}, silhouette {score:.3f}, sizes {sizes.tolist()}")
    return {
        "inertia": float(inertia),
        "silhouette": float(score),
        "sizes": sizes.tolist(),
        "centers": centers[order].tolist(),
    }


if __name__ == "__main__":
    main()
