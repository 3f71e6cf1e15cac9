"""``python -m taskuq`` is the command taskuq, also where no script of that name is on the path."""

from taskuq.commands.app import main

if __name__ == "__main__":
    main()
