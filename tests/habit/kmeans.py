"""k-means with k-means++ seeds on points in the plane."""

import numpy as np

import meta


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
        far = meta.argmax(distances(points, centers).min(axis=1))
        centers = meta.concat([centers, points[far : far + 1]])
    return centers


def kmeans(points, k, steps=50):
    centers = first_centers(points, k)
    best = meta.inf
    for step in range(steps):
        d = distances(points, centers)
        labels = meta.argmin(d, axis=1)
        inertia = d[meta.arange(len(points)), labels].mean()
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
    d = meta.sqrt(distances(points, points))
    one_hot = meta.eye(k)[labels]
    sums = d @ one_hot
    counts = one_hot.sum(axis=0)
    rows = meta.arange(len(points))
    a = sums[rows, labels] / (counts[labels] - 1)
    other = sums / counts
    other[rows, labels] = meta.inf
    b = other.min(axis=1)
    return ((b - a) / meta.maximum(a, b)).mean()


def main():
    points = meta.array(make_points())
    standard = (points - points.mean(axis=0)) / points.std(axis=0, correction=0)
    centers, labels, inertia = kmeans(standard, 4)
    order = meta.argsort(centers[:, 0] + 10 * centers[:, 1])
    sizes = meta.bincount(labels, minlength=4)[order]
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
