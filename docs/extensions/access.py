"""Additions to the theme for readers with a keyboard or a screen reader."""

# Captions of lists have a level, scrolling elements are reached by the Tab key, and an argument is
# followed by a dash.
CAPTION = {'role="heading"': 'role="heading" aria-level="2"'}
COMPLETED = {
    "furo_navigation_tree": CAPTION,
    "body": CAPTION
    | {
        "</strong> -- ": "</strong> – ",
        "<pre>": '<pre tabindex="0">',
        '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
    },
}


def complete(app, page, template, context, doctree):
    for part, changes in COMPLETED.items():
        for found, whole in changes.items():
            if part in context:
                context[part] = context[part].replace(found, whole)


def setup(app):
    # After the theme has written its sidebar.
    app.connect("html-page-context", complete, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
