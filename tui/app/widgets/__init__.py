"""The parts of the screens. A pane paints lines of styled text, and a frame joins panes."""
