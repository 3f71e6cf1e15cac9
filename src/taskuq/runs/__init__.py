"""What a configuration starts: the demo, a run, a training, a judgement of image quality, pages."""
