"""``python -m meta demo``: train a small network on images of digits, from data to saved weights.

`data` reads and splits images, `network` is the model, `training` trains, evaluates and times it,
`command` ties them together and reports.
"""
