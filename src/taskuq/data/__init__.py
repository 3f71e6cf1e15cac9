"""From files to images with labels and groups: fastMRI, your own images, the embedded atlas.

Every data set is a :class:`taskuq.data.dataset.Dataset`: ``len(d)`` cases, ``d[i]`` an
:class:`taskuq.data.dataset.Item`. Import what you need from the module that has it, for instance
``from taskuq.data.atlas import Atlas``.
"""
