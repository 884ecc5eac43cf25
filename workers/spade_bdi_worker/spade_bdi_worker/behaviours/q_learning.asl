// Tabular Q-learning. Environment, exploration and the table are actions; what to do with them stands here.

+!act : evaluating & state(S)
  <- .best(S, A);
     .act(A).

+!act : state(S)
  <- .choose(S, A);        // mostly the best action, at random while exploring
     .act(A, R);
     ?state(T);            // what is perceived now
     .learn(S, A, R, T).
