"""A rehearsal: every command of docs/fastmri.md at its real size, a few steps each."""
