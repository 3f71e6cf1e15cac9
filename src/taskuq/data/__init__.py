"""From files to images with labels and groups: fastMRI, your own images, the embedded atlas.

Every data set is a :class:`taskuq.data._dataset.Dataset`: ``len(d)`` cases, ``d[i]`` an
:class:`taskuq.data._dataset.Case`. Import what you need from the module that has it, for instance
``from taskuq.data._atlas import Atlas``.
"""
