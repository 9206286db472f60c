local floor = ARGV[3]
