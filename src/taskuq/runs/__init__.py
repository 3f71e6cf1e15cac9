"""What a configuration file starts: the demo, a run, a judgement of image quality."""
