"""The help, the arguments and the flags of each command, without the imports of its work, which take seconds."""
